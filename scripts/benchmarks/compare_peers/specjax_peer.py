"""specjax itself."""

import argparse
from collections.abc import Iterator
from functools import partial

from contender import Answer, Contender

import specjax
from specjax.drafters import needs_of
from specjax.loop.drafter import Nothing


def contenders(args: argparse.Namespace, tokenizer, longest: int) -> Iterator[Contender]:
    """A contender for each of ``--forms`` and ``--methods``."""

    def run(generator, prompt):
        result = generator(prompt, max_new_tokens=args.max_new_tokens, ignore_eos=True)
        return Answer(tokenizer.decode(result.token_ids), len(result.token_ids), result.stats.decode_seconds)

    for form in args.forms.split(","):
        target = specjax.load(args.model, **({"dtype": form} if "float" in form else {"quantize": form}))
        for method in dict.fromkeys(["none", *args.methods.split(",")]):
            takes_draft = method == "auto" or not isinstance(needs_of(method), Nothing)
            draft = args.draft if takes_draft else None
            generator = specjax.Generator(target, method, draft, capacity=longest + args.max_new_tokens + 64)
            yield Contender("specjax", form, "plain" if method == "none" else method, partial(run, generator))

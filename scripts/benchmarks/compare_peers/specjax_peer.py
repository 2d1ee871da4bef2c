"""specjax itself."""

import argparse
from functools import partial

import specjax
from specjax.drafters import needs_of, own_options
from specjax.loop.drafter import Nothing


def contenders(args: argparse.Namespace, longest: int) -> dict:
    """Functions from token ids to new token ids, for the methods of ``--methods``."""
    target, draft = specjax.load(args.model), specjax.load(args.draft)

    def run(generator, prompt):
        return generator(prompt, max_new_tokens=args.max_new_tokens, ignore_eos=True).token_ids

    K, found = args.num_speculative_tokens, {}
    for method in dict.fromkeys(["none", *args.methods.split(",")]):
        drafting = {"num_speculative_tokens": K} if "num_speculative_tokens" in own_options(method) else {}
        pair = None if isinstance(needs_of(method), Nothing) else draft
        capacity = longest + args.max_new_tokens + K + 1
        generator = specjax.Generator(target, method, pair, capacity=capacity, **drafting)
        found[f"specjax {method}"] = partial(run, generator)
    return found

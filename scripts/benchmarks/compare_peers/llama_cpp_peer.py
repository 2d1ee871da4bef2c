"""llama.cpp, through its server in the package xllamacpp."""

import argparse
import os
from collections.abc import Iterator
from functools import partial

from contender import Answer, Contender

TYPES = ("BF16", "Q8_0", "Q4_0", "Q4_1")
MATCH, LOOKED_UP = 3, 5
"""The tokens of a match, and the looked-up tokens after it."""


def contenders(args: argparse.Namespace, tokenizer, longest: int) -> Iterator[Contender]:
    """A contender for each type of weights, and for each way to draft.

    Raises ImportError without xllamacpp or gguf, and for a model that is not written as GGUF.
    """
    import xllamacpp
    from gguf_files import written

    kinds = xllamacpp.common_speculative_type

    def parameters(kind: str) -> xllamacpp.CommonParams:
        params = xllamacpp.CommonParams()
        params.model.path = str(written(args.model, kind, args.converted))
        params.n_ctx, params.n_parallel, params.verbosity = longest + args.max_new_tokens + 64, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
        return params

    def run(server, prompt):
        request = dict(
            prompt=prompt, n_predict=args.max_new_tokens, temperature=0.0, ignore_eos=True, cache_prompt=False
        )
        answer = server.handle_completions(request)
        timings = answer["timings"]
        return Answer(answer["choices"][0]["text"], timings["predicted_n"], timings["predicted_ms"] / 1e3)

    for kind in TYPES:
        yield Contender("llama.cpp", kind, "plain", partial(run, xllamacpp.Server(parameters(kind))))
        params = parameters(kind)
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = MATCH, LOOKED_UP
        yield Contender("llama.cpp", kind, "lookup", partial(run, xllamacpp.Server(params)))
        if args.peer_draft:
            params = parameters(kind)
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            params.speculative.draft.mparams.path = str(written(args.peer_draft, kind, args.converted))
            yield Contender("llama.cpp", kind, "draft", partial(run, xllamacpp.Server(params)))

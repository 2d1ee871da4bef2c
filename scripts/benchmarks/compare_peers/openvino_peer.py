"""OpenVINO GenAI. It reads GGUF files."""

import argparse
import os
from collections.abc import Iterator
from functools import partial

import numpy as np
from contender import Answer, Contender

TYPES = ("F16", "Q8_0", "Q4_0")
DRAFTED = 5
"""Drafted tokens in a round."""


def contenders(args: argparse.Namespace, tokenizer, longest: int) -> Iterator[Contender]:
    """A contender for each type of weights, and for each way to draft.

    Raises ImportError without openvino_genai or gguf, and for a model that is not written as GGUF.
    """
    import openvino
    import openvino_genai
    from gguf_files import written

    schedule = openvino_genai.SchedulerConfig()
    schedule.enable_prefix_caching = False  # else a pipeline reads a prompt once for all runs

    def pipeline(kind: str, **drafting) -> openvino_genai.LLMPipeline:
        threads = len(os.sched_getaffinity(0))
        file = str(written(args.model, kind, args.converted))
        return openvino_genai.LLMPipeline(
            file, "CPU", scheduler_config=schedule, INFERENCE_NUM_THREADS=threads, **drafting
        )

    def run(pipeline, prompt, **options):
        ids = np.array([prompt])
        read = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        options |= dict(max_new_tokens=args.max_new_tokens, ignore_eos=True, do_sample=False)
        result = pipeline.generate(read, **options)
        times = result.perf_metrics
        decoding = (times.get_generate_duration().mean - times.get_ttft().mean) / 1e3
        return Answer(tokenizer.decode(result.tokens[0]), len(result.tokens[0]), decoding)

    drafted = dict(num_assistant_tokens=DRAFTED)
    for kind in TYPES:
        yield Contender("openvino", kind, "plain", partial(run, pipeline(kind)))
        lookup = pipeline(kind, prompt_lookup=True)
        yield Contender("openvino", kind, "lookup", partial(run, lookup, max_ngram_size=3, **drafted))
        if args.peer_draft:
            draft = openvino_genai.draft_model(str(written(args.peer_draft, kind, args.converted)), "CPU")
            yield Contender("openvino", kind, "draft", partial(run, pipeline(kind, draft_model=draft), **drafted))

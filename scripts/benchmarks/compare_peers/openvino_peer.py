"""OpenVINO GenAI, in bfloat16 where the processor has it."""

import argparse
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

from specjax.checkpoints.hub import find

_DRAFTED = (3, 5, 8)
"""Drafted tokens in a round, for drafts and for prompt lookup."""


def contenders(args: argparse.Namespace, longest: int) -> dict:
    """Functions from token ids to new token ids. Raises ImportError without openvino_genai."""
    import openvino
    import openvino_genai

    def run(pipeline, prompt, **options):
        ids, ones = np.array([prompt]), np.ones((1, len(prompt)), np.int64)
        given = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(ones))
        options |= dict(max_new_tokens=args.max_new_tokens, ignore_eos=True, do_sample=False)
        return pipeline.generate(given, **options).tokens[0]

    target, draft = (convert(name, args.converted) for name in (args.model, args.draft))
    device = dict(INFERENCE_PRECISION_HINT="bf16", INFERENCE_NUM_THREADS=len(os.sched_getaffinity(0)))
    schedule = openvino_genai.SchedulerConfig()
    schedule.enable_prefix_caching = False  # else a pipeline reads a prompt only once for all its settings
    make = partial(openvino_genai.LLMPipeline, str(target), "CPU", scheduler_config=schedule, **device)
    lookup, assisted = make(prompt_lookup=True), make(draft_model=openvino_genai.draft_model(str(draft), "CPU"))
    found = {"openvino plain": partial(run, make())}
    for K in _DRAFTED:
        found[f"openvino lookup, {K} tokens"] = partial(run, lookup, num_assistant_tokens=K, max_ngram_size=3)
        found[f"openvino draft, {K} tokens"] = partial(run, assisted, num_assistant_tokens=K)
    return found


def convert(name: str, converted: Path) -> Path:
    """The directory of the model in OpenVINO's format. It is written where it is missing.

    Raises ImportError without optimum-intel.
    """
    source = find(name)
    output = converted / f"openvino_{source.name}"
    if not (output / "openvino_model.xml").exists():
        import optimum.exporters.openvino  # noqa: F401  # the program below needs it

        command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino", "--model", str(source)]
        command += ["--task", "text-generation-with-past", "--weight-format", "fp16", str(output)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return output

"""The decoding of transformers, with PyTorch."""

import argparse
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from contender import Answer, Contender

from specjax.checkpoints.convert import convert
from specjax.checkpoints.hub import find


def contenders(args: argparse.Namespace, tokenizer, longest: int) -> Iterator[Contender]:
    """A contender in bfloat16 for each way to draft. Raises ImportError without torch."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    @torch.no_grad()
    def run(model, prompt, **options):
        began = []  # the time after the first token
        options["stopping_criteria"] = [
            lambda ids, scores: began.append(time.perf_counter()) or torch.zeros(1, dtype=bool)
        ]
        ids = torch.tensor([prompt])
        length = dict(max_new_tokens=args.max_new_tokens, min_new_tokens=args.max_new_tokens)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length, **options)
        new = out[0, len(prompt) :].tolist()
        return Answer(tokenizer.decode(new), len(new), time.perf_counter() - began[0])

    def load(name: str):
        folder = _unpacked(name, args.converted) if name.endswith(".gguf") else find(name)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    model = load(args.model)
    yield Contender("transformers", "bfloat16", "plain", partial(run, model))
    yield Contender("transformers", "bfloat16", "lookup", partial(run, model, prompt_lookup_num_tokens=5))
    if args.peer_draft:
        draft = load(args.peer_draft)
        yield Contender("transformers", "bfloat16", "draft", partial(run, model, assistant_model=draft))


def _unpacked(file: str, folder: Path) -> Path:
    """The directory of a GGUF file's model. It is written where it is missing."""
    output = folder / Path(file).stem
    if not output.exists():
        convert(file, output, dtype="bfloat16")
    return output

"""The decoding of transformers, with PyTorch."""

import argparse
import copy
import os
from functools import partial

from specjax.checkpoints.hub import find

_ASSISTED = {
    "defaults": {},
    "5 tokens, constant": dict(
        num_assistant_tokens=5, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    ),
    "8 tokens, heuristic": dict(
        num_assistant_tokens=8, num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.0
    ),
}
"""The settings of assisted generation."""


def contenders(args: argparse.Namespace, longest: int) -> dict:
    """Functions from token ids to new token ids. Raises ImportError without torch."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    @torch.no_grad()
    def run(model, prompt, config=None, **options):
        if config is not None:  # A schedule changes the draft length in the configuration.
            options["assistant_model"].generation_config = copy.deepcopy(config)
        ids = torch.tensor([prompt])
        length = dict(max_new_tokens=args.max_new_tokens, min_new_tokens=args.max_new_tokens)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length, **options)
        return out[0, len(prompt) :].tolist()

    found = {}
    for dtype in ("float32", "bfloat16"):
        load = lambda name: AutoModelForCausalLM.from_pretrained(find(name), dtype=getattr(torch, dtype)).eval()
        model, assistant = load(args.model), load(args.draft)
        found[f"transformers plain, {dtype}"] = partial(run, model)
        for name, setting in _ASSISTED.items():
            config = copy.deepcopy(assistant.generation_config)
            config.update(**setting)
            assisted = partial(run, model, assistant_model=assistant, config=config)
            found[f"transformers draft, {dtype}, {name}"] = assisted
        found[f"transformers lookup, {dtype}"] = partial(run, model, prompt_lookup_num_tokens=10)
    return found

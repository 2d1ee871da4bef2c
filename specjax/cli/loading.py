"""Loads the models that the flags in ``arguments.Models`` name."""

import argparse
import copy
import dataclasses

from ..core.read_files import LARGEST_TOML, read_text
from ..errors import RequestError
from .arguments import Models


def apply_boost(args: argparse.Namespace) -> None:
    """Sets the flags of models, method and drafting to the choice of ``--boost``, if it is given.

    Raises RequestError for a draft or a method beside it. A model beside it replaces the target's
    place.
    """
    if args.boost is None:
        return
    from ..text.boosted import read_boosted

    for name in ("draft", "method"):
        if getattr(args, name):
            raise RequestError(f"--boost chooses the {name}; leave --{name} out")
    boosted = read_boosted(args.boost)
    if args.model == Models.model:
        args.model = boosted.model
    args.draft = [boosted.draft] if boosted.draft else []
    args.method = boosted.method
    for name, value in (boosted.options | boosted.loading).items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def load_target(args: argparse.Namespace):
    """The model of ``--model``."""
    from ..checkpoints.load import load
    from ..parallel import make_draft_mesh, make_mesh, parse_mesh
    from ..training.sources import make_sources

    if args.chat_template is not None and not getattr(args, "chat", True):
        raise RequestError("--chat-template is for conversations; add --chat, or leave it out")
    for source in make_sources(getattr(args, "draft_vocab_data", None) or ()):
        source.list_files()
    template = args.chat_template and read_template(args.chat_template)
    mesh = None if args.mesh is None else make_mesh(**parse_mesh(args.mesh))
    if args.draft_mesh is not None:
        make_draft_mesh(args.draft_mesh, mesh)  # refuses a wrong mesh before the weights are read
    options = {key: getattr(args, key) for key in ("dtype", "revision", "adapter", "quantize", "kv_quantize")}
    target = load(args.model, mesh=mesh, offload=bool(args.offload), **options)
    from transformers.utils import logging

    logging.set_verbosity_error()  # specjax refuses an overlong prompt itself, in one line
    if template is None:
        return target
    tokenizer = copy.copy(target.tokenizer)
    tokenizer.chat_template = template
    return dataclasses.replace(target, tokenizer=tokenizer)


def read_template(given: str) -> str:
    """The template of ``--chat-template``, which is its text or its file."""
    if "{{" in given or "{%" in given:
        return given
    return read_text(given, f"--chat-template {given}", LARGEST_TOML)


def load_given_drafts(args: argparse.Namespace, target) -> list:
    """The drafts of ``--draft``, on the devices of ``--draft-mesh`` if it is given.

    Drafts are names where no other flag says how to load them.
    """
    from ..checkpoints.heads import load_drafter
    from ..parallel import make_draft_mesh, mesh_of

    loading = dict(adapter=args.draft_adapter, quantize=args.draft_quantize)
    if args.draft_mesh is not None:
        loading["mesh"] = make_draft_mesh(args.draft_mesh, mesh_of(target.model))
    if args.draft_vocab is None and all(value is None for value in loading.values()):
        return args.draft
    drafts = [load_drafter(name, target, **loading) for name in args.draft]
    return drafts if args.draft_vocab is None else _restrict(drafts, target, args)


def _restrict(drafts: list, target, args: argparse.Namespace) -> list:
    """The drafts with the vocabulary of ``--draft-vocab``."""
    from ..requests.shared_vocabulary import restrict_draft
    from ..training.frequency import frequent_tokens

    tokens = frequent_tokens(target, args.draft_vocab, args.draft_vocab_data or ())
    return [restrict_draft(draft, target, tokens) for draft in drafts]

"""The flags that several commands share, and their translation for the library."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

from ..checkpoints.placement import STORED
from ..core.stored_rows import KV_SCHEMES
from ..drafters import METHODS
from ..errors import RequestError
from ..models.quantised_weights import SCHEMES
from ..parallel import start
from ..requests.options import Options
from .drafting import check_files
from .fields import flag, flags_of

MOST_PROMPTS = 100_000
DTYPES = ("float32", "bfloat16", "float16")
APART = ("offload", "draft_mesh")
"""The flags in ``Models`` of commands whose drafts may have devices of their own."""

NOT_GIVEN = dict.fromkeys(("adapter", "quantize", "kv_quantize", "chat_template", "mesh", *APART))
"""The values of flags that ``load_target`` reads, for commands that lack them."""


@dataclasses.dataclass(frozen=True)
class Models:
    """The flags of models.

    Attributes:
      model: the target: an embedded name, a directory, a GGUF file or a hub id.
      draft: a smaller model or a trained head, by name like --model; merged, cascade and lists such
        as draft_model,draft_model take several.
      revision: branch, tag or commit of --model, if that is a hub id.
      dtype: dtype of the weights; by default the checkpoint's.
      adapter: LoRA adapter of --model in the layout of PEFT, a directory or a hub id; it is merged
        at load.
      quantize: form of the weights of --model in memory; stored keeps the numbers of a packed
        checkpoint; by default --dtype.
      kv_quantize: form of keys and values in the cache of --model; by default full.
      draft_adapter: LoRA adapter of the draft.
      draft_quantize: form of the draft models' weights; by default dtype.
      draft_vocab: draft the N most frequent tokens only: a smaller output matrix of draft models;
        the output stays exact.
      draft_vocab_data: texts that --draft-vocab counts, as for training; by default code of
        Python's standard library.
      mesh: devices to run on, such as data=2,model=4: data splits the prompts of a batch, model the
        weights, nodes the nodes of token trees; by default one device.
      offload: keep the layers of --model in the host's memory, and copy them to the device for each
        forward; for a target that is larger than the device's memory.
      draft_mesh: devices of the drafts' own, of those that the target leaves, such as model=2; cpu
        for the CPU beside a GPU or TPU; by default drafts are on the target's devices.
    """

    model: str = "tiny-python"
    draft: tuple[str, ...] = flag((), action="append")
    revision: str | None = None
    dtype: str | None = flag(None, choices=DTYPES)
    adapter: str | None = flag(None, metavar="DIR")
    quantize: str | None = flag(None, choices=(*SCHEMES, *STORED))
    kv_quantize: str | None = flag(None, choices=[*KV_SCHEMES])
    draft_adapter: str | None = flag(None, metavar="DIR")
    draft_quantize: str | None = flag(None, choices=(*SCHEMES, *STORED))
    draft_vocab: int | None = flag(None, least=1)
    draft_vocab_data: tuple[str, ...] | None = flag(None, nargs="+", metavar="PATH")
    mesh: str | None = flag(None, metavar="AXES")
    offload: bool | None = None
    draft_mesh: str | None = flag(None, metavar="AXES|cpu")


@dataclasses.dataclass(frozen=True)
class Choice:
    """The flag of a choice that is made already.

    Attributes:
      boost: directory of specjax boost, which names the model, the drafter, the method and its
        options.
    """

    boost: Path | None = flag(None, metavar="DIR")


_NAMED = f"one of {', '.join(METHODS)}, or several in order, such as ngram,draft_model"
_PLAIN = "none without a draft, draft_model with one, merged with several, and the head's own method with a head"


@dataclasses.dataclass(frozen=True)
class Method:
    """The flags of the method.

    Attributes:
      rule: acceptance rule; auto is the best lossless one.
    """

    method: str | None = flag(
        None,
        help=f"{_NAMED}; by default auto without a draft, with a draft model, and with a head of one module that "
        "drafts token by token, and merged with several drafts; with options of drafting, another rule, a feedback "
        f"log, several hosts or --offload {_PLAIN}",
    )
    rule: str = "auto"


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The flags of prompts from a file.

    Attributes:
      prompts: file of JSON lines with prompt or turns; by default held-out code of Python's
        standard library.
      num_prompts: number of prompts to use; by default all of the file, or 16.
      chat: read the lines of --prompts as conversations in the model's chat template: each turn of
        the user is a prompt, after the file's answers or else the model's own; --num-prompts counts
        conversations.
      chat_template: chat template in Jinja, in place of the model's own: a file, or the text of a
        template with {{ or {%.
    """

    prompts: Path | None = None
    num_prompts: int | None = flag(None, least=1, most=MOST_PROMPTS)
    chat: bool = False
    chat_template: str | None = flag(None, metavar="FILE|TEXT")


@dataclasses.dataclass(frozen=True)
class Output:
    """The flags of results.

    Attributes:
      output: also write the JSON to this file.
      json: print one JSON object.
    """

    output: Path | None = None
    json: bool = False


MODELS = {"models": flags_of(Models)}
MODELS_TOGETHER = {"models": {name: form for name, form in MODELS["models"].items() if name not in APART}}
"""The flags of models of commands that keep target and drafts together."""

METHOD = {"method": flags_of(Method)}
BOOST = flags_of(Choice)
METHOD_EXAMINED = {"method": flags_of(Method, forms={"method": dict(help=f"{_NAMED}; by default {_PLAIN}")})}
"""The flags of the method of commands that examine one method, and never choose auto."""

_HOSTS = {"coordinator": dict(metavar="HOST:PORT"), "num_processes": dict(least=1), "process_id": dict(least=0)}
HOSTS = {
    "several hosts (the same command on each; TPU pods, SLURM and Open MPI need no flags)": flags_of(
        start, *_HOSTS, forms=_HOSTS
    )
}
CHAT_TEMPLATE = flags_of(Prompts, "chat_template")
NEW_TOKENS = flags_of(Options, "max_new_tokens", forms={"max_new_tokens": dict(least=1)})


def choose_method(args: argparse.Namespace) -> str | None:
    """The method by whose name flags are checked.

    It is the user's, or "none" without a method and drafts.

    None for drafts without a method: one of them may be a head, which has a method of its own; and
    for times of method auto.
    """
    from ..drafters import default_method

    return args.method or (None if args.draft or args.costs else default_method(()))


def check_method(args: argparse.Namespace, method: str | None, options: dict) -> None:
    """Raises RequestError for options, drafts or a rule that do not fit the method.

    It runs before a model is loaded.
    """
    from ..drafters import check_drafts, check_options, make_drafter, needs_of
    from ..loop.drafter import TrainedHead
    from ..rules.acceptance import resolve

    if args.draft_mesh is not None and not args.draft:
        raise RequestError("--draft-mesh places a draft and none is given; name one with --draft")
    if args.draft_adapter is not None and len(args.draft) != 1:
        raise RequestError(f"--draft-adapter changes one draft and {len(args.draft)} are given; give one --draft")
    if args.draft_quantize is not None and not args.draft:
        raise RequestError("--draft-quantize quantises a draft model and none is given; name one with --draft")
    if args.draft_vocab_data is not None and args.draft_vocab is None:
        raise RequestError("--draft-vocab-data is counted for --draft-vocab; give --draft-vocab N too")
    if args.draft_vocab is not None and not args.draft:
        raise RequestError("--draft-vocab restricts a draft model and none is given; name one with --draft")
    if method is None:
        return check_files(options)
    check_options(method, options)
    check_files(options)
    check_drafts(method, len(args.draft))
    if not isinstance(needs_of(method), TrainedHead):  # A method with a head is made after its head is loaded.
        resolve(getattr(args, "rule", "auto"), make_drafter(method, **options).drawn)


def prepare_prompts(args: argparse.Namespace, tokens: int = 128, count: int = 16) -> Callable:
    """Reads ``--prompts``, and returns a function from a loaded target to its prompts.

    Without ``--prompts`` they are ``count`` held-out pieces of code of at most ``tokens`` tokens.
    """
    from ..tools.evaluate import held_out_prompts, read_prompts

    file_prompts = args.prompts and read_prompts(args.prompts)

    def prompts(target) -> list[str]:
        size = min(tokens, target.config.context // 4)
        return (file_prompts or held_out_prompts(target.tokenizer, args.num_prompts or count, size))[: args.num_prompts]

    return prompts


def prepare_conversations(args: argparse.Namespace) -> Callable:
    """Reads the conversations of ``--prompts``, and returns a function from a target to prompts."""
    from ..tools.evaluate import chat_prompts, read_conversations

    if args.prompts is None:
        raise RequestError("--chat needs --prompts; name a file of JSON lines with turns or messages")
    conversations = read_conversations(args.prompts)[: args.num_prompts]
    return lambda target: chat_prompts(target, conversations, args.max_new_tokens)

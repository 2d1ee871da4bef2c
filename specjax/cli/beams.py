"""``specjax beams``: the likeliest continuations of prompts, by beam search."""

import argparse
import dataclasses
import json

from ..text.beam_search import beam_search
from .arguments import HOSTS, NEW_TOKENS, Models
from .fields import flag, flags_of
from .loading import load_target
from .terminal import status


@dataclasses.dataclass(frozen=True)
class Beams:
    """The flags of the command beside those of the function.

    Attributes:
      prompt: text to continue.
      json: print one JSON object.
    """

    prompt: tuple[str, ...] = flag(action="append", metavar="TEXT")
    json: bool = False


_FORMS = {
    "num_beams": dict(least=1, most=1024, help="continuations to keep"),
    "length_penalty": {},
    "stop_token_ids": dict(nargs="+", metavar="ID"),
}
FLAGS = {
    "options": flags_of(Beams) | flags_of(beam_search, *_FORMS, forms=_FORMS) | NEW_TOKENS,
    "models": flags_of(Models, "model", "revision", "dtype", "adapter", "quantize", "mesh"),
} | HOSTS
COMMON = ("prompt", "model", "num_beams", "max_new_tokens", "json")


def run(args: argparse.Namespace) -> None:
    """Searches, and prints the score and the text of each beam."""
    with status("loading"):
        target = load_target(args)
    options = {key: getattr(args, key) for key in (*_FORMS, "max_new_tokens")}
    with status("compiling and searching"):
        results = beam_search(target, args.prompt, **options)
    if args.json:
        rows = zip(args.prompt, results)
        print(json.dumps([{"prompt": prompt, "beams": list(map(dataclasses.asdict, beams))} for prompt, beams in rows]))
        return
    for prompt, beams in zip(args.prompt, results):
        print(f"{prompt!r}")
        for beam in beams:
            print(f"{beam.score:9.4f}  {beam.text!r}")

"""The seconds of rounds on a device that is not at hand."""

from typing import Any

import numpy as np

from ...checkpoints.load import LanguageModel
from ...models.quantised_weights import scheme_of
from ...text.generator import Generator
from ..plan.plan import plan
from .round_time import RoundTimes


def plan_rounds(generator: Generator, blank: Generator, device: str, batch: int, length: int) -> RoundTimes:
    """The planned seconds of rounds at one batch, one value each.

    Args:
      generator: the generator of the method.
      blank: the generator of rounds without a draft, see ``round_time.without_draft``.
      device: a device with its topology, see ``plan.devices.parse_device``.
      batch: the number of rows.
      length: the tokens of a row, prompt and output.

    Raises RequestError as ``plan.plan.plan`` does.
    """
    target = generator.target
    drafts = [draft for draft in generator.drafts if isinstance(draft, LanguageModel)]
    sizes: dict[str, Any] = dict(
        device=device,
        batch=batch,
        max_length=length,
        dtype=str(target.model.embed[...].dtype),
        quantize=scheme_of(target.model),
        draft_quantize=scheme_of([draft.model for draft in drafts]),
    )
    whole = plan(target.config, generator.drafter, [draft.config for draft in drafts], **sizes)
    verify = plan(target.config, blank.drafter, **sizes)
    seconds = (whole["plain_seconds_per_token"], verify["seconds_per_round"], whole["seconds_per_round"])
    return RoundTimes(*(np.array([value]) for value in seconds))

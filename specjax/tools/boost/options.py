"""The options of a boost."""

import dataclasses
from collections.abc import Sequence

from ...core.checks import suggest
from ...errors import RequestError
from .candidates import CANDIDATES, USUAL

DEVICES = ("here", "plan")


@dataclasses.dataclass(frozen=True)
class BoostOptions:
    """The options of a boost.

    Attributes:
      hours: time for the whole boost. By default it has no limit.
      tokens: tokens that the target writes, from which drafters learn.
      drafter: kind of drafter; "auto" tries several.
      data: files of conversations or texts, as training reads them; their prompts are answered by
        the target. By default the target writes questions itself.
      questions: held-out questions of the proof.
      new_tokens: most new tokens of an answer in the proof.
      device: "here", or "plan" to stop after the survey, which says which kinds may pay here. The
        same call with "here" goes on.
      seed: draws questions, answers and trainings.

    Raises RequestError for values out of bounds.
    """

    hours: float | None = None
    tokens: int = 2_000_000
    drafter: str = "auto"
    data: Sequence[str] = ()
    questions: int = 40
    new_tokens: int = 128
    device: str = "here"
    seed: int = 0

    def __post_init__(self):
        if self.hours is not None and not self.hours > 0:
            raise RequestError(f"hours must be above 0, not {self.hours}")
        for name in ("tokens", "questions", "new_tokens"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.device not in DEVICES:
            raise RequestError(f"device {self.device!r} is unknown; use {' or '.join(DEVICES)}")
        if self.drafter not in ("auto", *CANDIDATES):
            mend = suggest(self.drafter, CANDIDATES) or f"; use auto, {', '.join(CANDIDATES)}"
            raise RequestError(f"drafter {self.drafter!r} is unknown{mend}")

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds to try."""
        return USUAL if self.drafter == "auto" else (self.drafter,)

"""The options of a server. This module needs no package of the extra ``serve``."""

import dataclasses
from typing import Any

from ..checkpoints.config import check_scheme
from ..checkpoints.generation_config import GENERATION_CONFIGS
from ..core.checks import shorten, whole
from ..engine import EngineOptions, usual_widths
from ..errors import RequestError


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """The options of a server beside those of its engine.

    Attributes:
      name: the name of the model in the protocol; by default the name by which it was loaded.
      api_key: the key that requests to ``/v1`` need; by default none.
      generation_config: "auto" takes the sampling options in the model's ``generation_config.json``
        as defaults of requests, "none" ignores them.
      queue: the most texts that wait beside those in the engine's slots. Further ones get 429.
      largest_body: the most bytes of a request's body. A larger one gets 413.
      traces: the address to which traces of requests go, by OTLP over HTTP, such as
        "http://127.0.0.1:4318/v1/traces". By default there are none.

    Raises RequestError for values out of bounds.
    """

    name: str | None = None
    api_key: str | None = None
    generation_config: str = "auto"
    queue: int = 256
    largest_body: int = 2**20
    traces: str | None = None

    def __post_init__(self):
        check_scheme("generation_config", self.generation_config, GENERATION_CONFIGS)
        whole("queue", self.queue, 0)
        whole("largest_body", self.largest_body)
        if self.traces is not None and not self.traces.startswith(("http://", "https://")):
            raise RequestError(f"traces must be an address with http:// or https://, not {shorten(self.traces)}")


def server_engine_options(on_mesh: bool, **options) -> EngineOptions:
    """The options of a server's engine: ``options``, with a server's own defaults.

    A server records 5 ``logprobs``, and has the ``usual_widths`` of its slots. ``widths=None``
    stands for these too.

    Args:
      on_mesh: whether the target is on a mesh.
      options: fields of ``EngineOptions``.
    """
    widths = options.pop("widths", None)
    defaults: dict[str, Any] = {"logprobs": 5}
    sizes = EngineOptions(**defaults | options)
    return dataclasses.replace(sizes, widths=usual_widths(sizes.slots, on_mesh) if widths is None else widths)

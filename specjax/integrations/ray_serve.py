"""The server of the OpenAI protocol as a deployment of Ray Serve, for several replicas behind one address.

The module needs the extras ``ray`` and ``serve``, on every machine of the cluster.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ..checkpoints.load import load
from ..engine import Engine, usual_widths
from ..errors import HostError
from ..parallel import make_mesh, parse_mesh
from ..serve.app import LARGEST_BODY, QUEUE, make_app
from ..serve.server import warm_up

try:
    from ray import serve  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        f"specjax.integrations.ray_serve needs Ray Serve ({error}); install it with pip install 'specjax[ray,serve]'"
    ) from None

SLOTS = 16
"""The default number of texts that a replica decodes together."""


@serve.deployment(max_ongoing_requests=SLOTS + QUEUE)
@serve.ingress()
class Server:
    """A replica of the server; a deployment of Ray Serve.

        serve.run(Server.options(num_replicas=4, ray_actor_options={"num_gpus": 1}).bind("Qwen/Qwen3-8B"))

    Each replica has an engine of its own. Its answers are those of ``specjax serve``.

    Args:
      model: the name of the target; see ``load``.
      method, draft, rule, processors, drafting: see ``Generator``. Drafts are names.
      dtype, revision: see ``load``.
      mesh: axes of a mesh of the replica's devices, such as "model=4".
      name: the name of the model in the protocol; by default ``model``.
      slots, capacity, chunk, logprobs: see ``Engine``.
      widths: see ``Engine``; by default those of ``specjax serve``.
      api_key, queue, largest_body: see ``serve.app.make_app``. Ray holds back the requests beyond
        the deployment's ``max_ongoing_requests``.
    """

    def __init__(
        self,
        model: str,
        method: str | Sequence[str] | None = None,
        draft: str | Sequence[str] | None = None,
        *,
        dtype: str | None = None,
        revision: str | None = None,
        mesh: str | None = None,
        name: str | None = None,
        slots: int = SLOTS,
        widths: Sequence[int] | None = None,
        capacity: int = 4096,
        chunk: int = 128,
        logprobs: int | None = 5,
        rule: str = "auto",
        processors: Sequence[Callable] = (),
        api_key: str | None = None,
        queue: int = QUEUE,
        largest_body: int = LARGEST_BODY,
        **drafting,
    ):
        target = load(model, dtype, None if mesh is None else make_mesh(**parse_mesh(mesh)), revision)
        widths = usual_widths(slots, on_mesh=mesh is not None) if widths is None else widths
        sizes = dict(slots=slots, widths=widths, capacity=capacity, chunk=chunk, logprobs=logprobs)
        self.engine = Engine(target, method, draft, rule=rule, processors=processors, **sizes, **drafting).start()
        warm_up(self.engine)
        self._make_app = partial(make_app, name=name or model, api_key=api_key, queue=queue, largest_body=largest_body)

    def __serve_build_asgi_app__(self):
        return self._make_app(self.engine)

    def check_health(self) -> None:
        """Ray replaces the replica when this raises."""
        if not self.engine.is_started:
            raise HostError("the engine's thread has ended")

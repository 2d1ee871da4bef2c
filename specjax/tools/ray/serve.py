"""A deployment of Ray Serve with the OpenAI protocol: several replicas behind one address.

The module needs the extras ``ray`` and ``serve``, on every machine of the cluster.
"""

from collections.abc import Callable, Sequence

from ...checkpoints.load import load
from ...core.checks import pop_fields
from ...engine import Engine, EngineOptions, warm_up
from ...errors import HostError
from ...parallel import make_mesh, parse_mesh
from ...serve.app import make_app
from ...serve.options import ServerOptions, server_engine_options

try:
    from ray import serve  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        f"specjax.tools.ray.serve needs Ray Serve ({error}); install it with pip install 'specjax[ray,serve]'"
    ) from None


@serve.deployment(max_ongoing_requests=EngineOptions.slots + ServerOptions.queue)
@serve.ingress()
class Server:
    """A replica of the server; a deployment of Ray Serve.

        server = Server.options(num_replicas=4, ray_actor_options={"num_gpus": 1})
        serve.run(server.bind("Qwen/Qwen3-8B"))

    Each replica has an engine of its own. Its answers are those of ``specjax serve``.

    Args:
      model: the name of the target; see ``load``.
      method, draft, rule, processors: see ``Generator``. Drafts are names.
      dtype, revision: see ``load``.
      mesh: axes of a mesh of the replica's devices, such as "model=4".
      options: fields of ``EngineOptions`` and of ``ServerOptions``, with the defaults of ``specjax
        serve``; and options of drafting, see ``Generator``. Ray holds back the requests beyond the
        deployment's ``max_ongoing_requests``.
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
        rule: str = "auto",
        processors: Sequence[Callable] = (),
        **options,
    ):
        self._options = ServerOptions(**pop_fields(ServerOptions, options))
        sizes = server_engine_options(mesh is not None, **pop_fields(EngineOptions, options))
        target = load(model, dtype, None if mesh is None else make_mesh(**parse_mesh(mesh)), revision)
        self.engine = Engine(target, method, draft, options=sizes, rule=rule, processors=processors, **options)
        warm_up(self.engine.start())

    def __serve_build_asgi_app__(self):
        return make_app(self.engine, self._options)

    def check_health(self) -> None:
        """Ray replaces the replica when this raises."""
        if not self.engine.is_started:
            raise HostError("the engine's thread has ended")

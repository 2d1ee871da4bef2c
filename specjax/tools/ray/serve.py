"""An application of Ray Serve with the OpenAI protocol: several replicas behind one address.

The module needs the extras ``ray`` and ``serve``, on every machine of the cluster.
"""

import asyncio
from collections.abc import Sequence

from ...checkpoints.load import load
from ...core.checks import LARGEST, check_names, pop_fields
from ...drafters import all_options
from ...engine import Engine, EngineOptions, warm_up
from ...errors import CancelledError, HostError
from ...parallel import make_mesh, parse_mesh
from ...serve.app import make_app
from ...serve.errors import ServeError
from ...serve.options import ServerOptions, server_engine_options
from ...serve.streams import while_connected
from .routed import Routed, read_routed

try:
    from ray import serve  # pyright: ignore[reportMissingImports]
    from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]
    from ray.serve.exceptions import RayServeException  # pyright: ignore[reportMissingImports]
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse
    from starlette.routing import Mount
    from starlette.types import Receive, Scope, Send
except ImportError as error:
    raise ImportError(
        f"specjax.tools.ray.serve needs Ray Serve ({error}); install it with pip install 'specjax[ray,serve]'"
    ) from None

_ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter"
"""The class of ``ray.serve.llm.request_router``, a module that cannot be imported without vLLM."""

_CHARACTERS = 4
"""Characters of a token. The router forgets a text when the replica may have, too."""


def application(
    model: str,
    method: str | Sequence[str] | None = None,
    draft: str | Sequence[str] | None = None,
    *,
    mesh: str | None = None,
    replicas: dict | None = None,
    **options,
):
    """A server with several replicas; an application of Ray Serve.

        replicas = {"num_replicas": 4, "ray_actor_options": {"num_gpus": 1}}
        serve.run(application("Qwen/Qwen3-8B", replicas=replicas))

    Each replica has an engine of its own. Its answers are those of ``specjax serve``. A request
    goes to a replica that has read the beginning of its prompt, unless another one has fewer
    requests by more than ``slots``.

    Args:
      model: the name of the target; see ``load``.
      method, draft: see ``Generator``. Drafts are names.
      mesh: axes of a mesh of a replica's devices, such as "model=4".
      replicas: options of Ray's ``Deployment`` for the replicas. By default a replica gets at most
        ``slots + queue`` requests at a time, and ``autoscaling_config`` aims at ``slots``.
      options: ``dtype`` and ``revision`` of ``load``; fields of ``EngineOptions`` and of
        ``ServerOptions``, with the defaults of ``specjax serve``; ``rule``, ``processors`` and
        options of drafting, see ``Generator``.

    Raises RequestError for unknown options and for values out of bounds.
    """
    server = ServerOptions(**pop_fields(ServerOptions, options))
    sizes = server_engine_options(mesh is not None, **pop_fields(EngineOptions, options))
    check_names(options, ("dtype", "revision", "rule", "processors", *all_options()))
    remembered = _CHARACTERS * sizes.slots * sizes.capacity
    routing = {"imbalanced_threshold": sizes.slots, "do_eviction": True}
    routing |= {"eviction_threshold_chars": remembered, "eviction_target_chars": remembered}
    own = {
        "max_ongoing_requests": sizes.slots + server.queue,
        "request_router_config": {"request_router_class": _ROUTER, "request_router_kwargs": routing},
    } | (replicas or {})
    if "autoscaling_config" in own or own.get("num_replicas") == "auto":
        own["autoscaling_config"] = {"target_ongoing_requests": sizes.slots} | own.get("autoscaling_config", {})
    options |= dict(method=method, draft=draft, mesh=mesh, sizes=sizes, server=server)
    replica = Replica.options(**own).bind(model, **options)
    return Front.bind(replica, server.largest_body)


def __getattr__(name: str):
    if name == "Server":
        raise AttributeError("Server has become a function; call serve.run(application(...))")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@serve.deployment
class Replica:
    """An engine that answers requests of the front; see ``application``."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str | None = None,
        revision: str | None = None,
        mesh: str | None,
        sizes: EngineOptions,
        server: ServerOptions,
        **options,
    ):
        target = load(model, dtype, None if mesh is None else make_mesh(**parse_mesh(mesh)), revision)
        self.engine = Engine(target, options=sizes, **options)
        warm_up(self.engine.start())
        self._app = make_app(self.engine, server)

    async def answer(self, routed: Routed):
        """Yields the messages of ASGI that answer a request, as they come."""
        messages: asyncio.Queue = asyncio.Queue()
        gone = asyncio.Event()
        bodies = [{"type": "http.request", "body": routed.body}]

        async def receive() -> dict:
            if bodies:
                return bodies.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        answering = asyncio.ensure_future(self._app(routed.scope, receive, messages.put))
        answering.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:  # also when Ray cancels the request
            gone.set()
            await answering

    def check_health(self) -> None:
        """Ray replaces the replica when this raises."""
        if not self.engine.is_started:
            raise HostError("the engine's thread has ended")


@serve.deployment(max_ongoing_requests=LARGEST, ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Front:
    """Passes requests on to the replicas, and their answers back; see ``application``."""

    def __init__(self, replicas, largest_body: int):
        self._replicas = replicas.options(stream=True)
        self._largest_body = largest_body

    def __serve_build_asgi_app__(self):
        return Starlette(routes=[Mount("/", self._pass_on)])

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            routed = await read_routed(Request(scope, receive), self._largest_body)
            await while_connected(receive, self._answer(routed, receive, send))
        except (CancelledError, ClientDisconnect):  # nobody reads an answer
            pass

    async def _answer(self, routed: Routed, receive: Receive, send: Send) -> None:
        # Ray's router reads the arguments without a name, and fails where they have no text.
        answer = self._replicas.answer
        messages = answer.remote(routed) if routed.prompt else answer.remote(routed=routed)
        has_begun = False
        try:
            async for message in messages:
                has_begun = True
                await send(message)
        except asyncio.CancelledError:
            messages.cancel()
            raise
        except (RayError, RayServeException):
            if has_begun:  # Ray breaks the connection, so that nobody takes a part for the whole
                raise
            problem = ServeError(503, "the replica ended before it answered; send the request again")
            await JSONResponse(problem.as_dict(), problem.status)(routed.scope, receive, send)

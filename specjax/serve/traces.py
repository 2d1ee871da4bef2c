"""Traces of requests for OpenTelemetry: how long each waited, was read and was decoded."""

import time
from collections.abc import Mapping

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.propagate import extract
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
except ImportError as error:
    raise ImportError(f"traces need their packages ({error}); install them with pip install 'specjax[otel]'") from None

from ..engine import Handle
from ..text.result import Result


class Traces:
    """Makes a span of each request, with a child for each of its stages.

    The stages are those of ``Handle.stages``. Spans belong to the trace that the header
    ``traceparent`` of the request names. The names of attributes are those of OpenTelemetry's
    conventions for generative AI, and begin with ``specjax`` where these have none.

    Args:
      provider: where the spans go.
      name: the name of the model.
    """

    def __init__(self, provider: TracerProvider, name: str):
        self._provider = provider
        self._tracer = provider.get_tracer("specjax")
        self._name = name

    @classmethod
    def to_collector(cls, address: str, name: str) -> "Traces":
        """Traces that go to a collector, by OTLP over HTTP."""
        provider = TracerProvider(resource=Resource.create({"service.name": "specjax"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(address)))
        return cls(provider, name)

    def follow(self, handle: Handle, headers: Mapping[str, str]) -> None:
        """Makes the spans of a request at its end. ``headers``: those of its HTTP request."""
        context = extract(headers)
        is_told = False

        def tell() -> None:
            nonlocal is_told
            if handle.is_over and not is_told:
                is_told = True
                self._tell(handle, context)

        handle.watch(tell)

    def close(self) -> None:
        """Sends the spans that are left."""
        self._provider.shutdown()

    def _tell(self, handle: Handle, context: Context) -> None:
        end = time.perf_counter()
        stages = handle.stages(end)
        span = self._tracer.start_span("request", context, SpanKind.SERVER, start_time=_nanoseconds(stages[0][1]))
        span.set_attributes(
            {
                "gen_ai.request.model": self._name,
                "gen_ai.usage.input_tokens": len(handle.prompt),
                "gen_ai.usage.output_tokens": len(handle.token_ids),
                "specjax.cached_tokens": handle.cached_tokens,
                "specjax.rounds": len(handle.rounds),
                "specjax.drafted": handle.drafted,
                "specjax.accepted": sum(handle.accepted_at),
            }
        )
        outcome = handle.outcome
        if isinstance(outcome, Result):
            span.set_attribute("gen_ai.response.finish_reasons", [outcome.finish_reason])
        else:
            span.set_status(Status(StatusCode.ERROR, str(outcome)))
        inside = set_span_in_context(span, context)
        for stage, begin, finish in stages:
            child = self._tracer.start_span(stage, inside, start_time=_nanoseconds(begin))
            child.end(_nanoseconds(finish))
        span.end(_nanoseconds(end))


def _nanoseconds(reading: float) -> int:
    """A reading of ``time.perf_counter`` as nanoseconds since 1970."""
    return time.time_ns() - int((time.perf_counter() - reading) * 1e9)

"""Traces of requests, against the figures of their answers and a collector that reads them."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from support.serving import served, wait_until

from specjax import RequestError
from specjax.serve.app import make_app

pytestmark = pytest.mark.slow  # the packages are an extra of the second tier
BODY = dict(model="bytes", prompt="hi", max_tokens=8, temperature=0, ignore_eos=True)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector():
    """A collector's address, and the bodies that it got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    server.server_close()


def spans_of(bodies: list[bytes]) -> list:
    import gzip

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    read = lambda body: gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    requests = [ExportTraceServiceRequest.FromString(read(body)) for body in bodies]
    scopes = [scope for request in requests for each in request.resource_spans for scope in each.scope_spans]
    return [span for scope in scopes for span in scope.spans]


def test_a_collector_gets_the_stages_of_each_request(app, collector):
    address, bodies = collector
    traced = make_app(app.state.engine, traces=address)
    with served(traced) as url:
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        answer = httpx.post(f"{url}/v1/completions", json=BODY, headers=parent, timeout=60).json()
        ended = httpx.post(f"{url}/v1/completions", json=BODY | dict(max_tokens=900, timeout=0.05), timeout=60)
        wait_until(lambda: not traced.state.engine.has_work)
    traced.state.traces.close()
    spans = spans_of(bodies)
    first, second = [span for span in spans if span.name == "request"]
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    values = {one.key: one.value for one in first.attributes}
    usage = answer["usage"]
    assert values["gen_ai.usage.input_tokens"].int_value == usage["prompt_tokens"]
    assert values["gen_ai.usage.output_tokens"].int_value == usage["completion_tokens"] == 8
    assert values["specjax.rounds"].int_value == answer["specjax"]["target_calls"]
    assert values["specjax.accepted"].int_value == answer["specjax"]["accepted"]
    stages = [span for span in spans if span.parent_span_id == first.span_id]
    assert [span.name for span in stages] == ["queue", "read", "rounds"]
    times = [first.start_time_unix_nano, *(span.end_time_unix_nano for span in stages)]
    assert times == sorted(times) and abs(times[-1] - first.end_time_unix_nano) < 1000
    for before, after in zip(stages, stages[1:]):
        assert abs(before.end_time_unix_nano - after.start_time_unix_nano) < 100_000
    assert ended.status_code == 504 and "timeout" in second.status.message


def test_an_address_that_is_none_is_refused(app):
    with pytest.raises(RequestError, match="traces must be an address with http:// or https://, not 'here'"):
        make_app(app.state.engine, traces="here")

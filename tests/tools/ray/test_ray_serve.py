"""The application of Ray Serve on a local cluster, with two replicas: where requests go, and what ends early."""

import itertools
import json
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from support.serving import wait_until

import specjax
from specjax import Generator, RequestError
from specjax.tools.ray.routed import prompt_of

pytestmark = pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning")

SIZES = dict(slots=2, queue=2, capacity=1024, chunk=64, logprobs=None)
REPLICAS = dict(num_replicas=2, ray_actor_options={"num_cpus": 0.5})
BEGINNINGS = ["".join(f"def {name}_{i}(x):\n    return x + {i}\n\n" for i in range(20)) for name in ("add", "sum")]


@pytest.fixture(scope="module")
def address(ray):
    """The address of an application with two replicas."""
    from ray import serve

    from specjax.tools.ray.serve import application

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"port": port})
    serve.run(application("tiny-python", "ngram", dtype="float32", name="tiny", replicas=REPLICAS, **SIZES))
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest.fixture(scope="module")
def generator():
    return Generator(specjax.load("tiny-python", dtype="float32"), "ngram", capacity=1024)


def body_of(prompt: str, **options) -> dict:
    return dict(model="tiny", prompt=prompt, temperature=0.8) | options


def ask(address: str, **options) -> httpx.Response:
    return httpx.post(f"{address}/v1/completions", json=body_of(**options), timeout=100)


def text_of(answer: httpx.Response) -> str:
    """The text of an answer. A stream must have its end."""
    if "event-stream" not in answer.headers["content-type"]:
        return answer.json()["choices"][0]["text"]
    *chunks, end = answer.text.strip().split("\n\n")
    assert end == "data: [DONE]"
    return "".join(json.loads(chunk.removeprefix("data: "))["choices"][0]["text"] for chunk in chunks)


@pytest.mark.slow
def test_a_beginning_is_read_by_one_replica(address):
    prompts = [f"{beginning}def f{i}(x):" for i in range(8) for beginning in BEGINNINGS]
    usages = [ask(address, prompt=prompt, max_tokens=2).json()["usage"] for prompt in prompts]
    assert min(usage["prompt_tokens"] for usage in usages) > 200
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[:2] == [0, 0] and min(cached[2:]) > 150  # two random replicas would make it once in 16384 runs


@pytest.mark.slow
def test_answers_and_errors_are_those_of_the_server(address, generator):
    options = dict(prompt="def f(x):", max_tokens=24, seed=3)
    expected = generator("def f(x):", max_new_tokens=24, temperature=0.8, seed=3)
    assert ask(address, **options).json()["choices"][0]["text"] == expected.text
    refused = ask(address, **options | {"temperature": -1})
    assert refused.status_code == 400 and "temperature must be" in refused.json()["error"]["message"]
    assert ask(address, prompt="", max_tokens=1).status_code == 400  # the router would divide by its length
    long = httpx.post(f"{address}/v1/completions", content=b"x" * (2**20 + 1))
    assert long.status_code == 413 and "the body has more than 1048576 bytes" in long.json()["error"]["message"]
    assert httpx.get(f"{address}/health").json() == {"status": "ok"}
    assert httpx.get(f"{address}/v1/models?a=b").json()["data"][0]["id"] == "tiny"


@pytest.mark.slow
def test_a_stream_comes_in_pieces_and_a_client_that_leaves_frees_its_slot(address, generator):
    expected = generator("import os", max_new_tokens=900, temperature=0.8, seed=5, ignore_eos=True)
    options = body_of("import os", max_tokens=900, seed=5, ignore_eos=True, stream=True)
    begin = time.monotonic()
    with httpx.stream("POST", f"{address}/v1/completions", json=options, timeout=100) as answer:
        first, *_, last = [time.monotonic() - begin for _ in answer.iter_raw()]
    assert first < last / 2
    assert text_of(ask(address, **options)) == expected.text

    for _ in range(6):  # more than a replica takes at a time
        with httpx.stream("POST", f"{address}/v1/completions", json=options, timeout=100) as answer:
            next(answer.iter_raw())
    wait_until(lambda: figures(address) == {"running": 0, "abort": 6})


def figures(address: str) -> dict[str, float]:
    """The requests of one of the replicas that run, and those that were given up."""
    page = httpx.get(f"{address}/metrics").text
    kinds = {"running": r"num_requests_running{.*} ", "abort": r'request_success_total{finished_reason="abort".*} '}
    return {kind: sum(map(float, re.findall(pattern + r"(\S+)", page))) for kind, pattern in kinds.items()}


def pids() -> set[int]:
    """The processes of the replicas of this cluster."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if ":Replica" in " ".join(child.cmdline())}


@pytest.mark.slow
def test_a_killed_replica_loses_no_answer(address, generator):
    prompts = [f"def f{i}({'abcdefg'[i % 7]}):\n    return" for i in range(40)]
    expected = generator(prompts, max_new_tokens=64, temperature=0.8, seed=list(range(40)), ignore_eos=True)
    answered, repeated = itertools.count(), []
    victim, _ = pids()

    def persist(i: int) -> str:
        while True:
            options = dict(prompt=prompts[i], max_tokens=64, seed=i, ignore_eos=True, stream=i % 2 == 1)
            try:
                answer = ask(address, **options)
                if answer.status_code == 200:
                    if next(answered) == 15:
                        os.kill(victim, signal.SIGKILL)
                    return text_of(answer)
                assert "the replica ended before it answered" in answer.text and answer.status_code == 503
            except httpx.RemoteProtocolError:
                assert options["stream"]  # a whole answer does not break
            repeated.append(i)

    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(persist, range(40)))
    assert texts == [result.text for result in expected] and repeated
    wait_until(lambda: len(pids() - {victim}) == 2, 60)  # Ray starts another


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [{"autoscaling_config": {"max_replicas": 3}}, {"num_replicas": "auto"}])
def test_autoscaling_aims_at_the_slots(replicas):
    from specjax.tools.ray.serve import application

    replica, _ = application("tiny-python", slots=8, queue=3, replicas=replicas)._bound_deployment.init_args
    config = replica._bound_deployment._deployment_config
    assert config.autoscaling_config.target_ongoing_requests == 8 and config.max_ongoing_requests == 11
    assert config.autoscaling_config.max_replicas > 1


@pytest.mark.slow
def test_options_are_checked_before_anything_starts():
    from specjax.tools.ray.serve import application

    with pytest.raises(RequestError, match="slots must be a whole number"):
        application("tiny-python", slots=0)
    with pytest.raises(RequestError, match="did you mean num_speculative_tokens"):
        application("tiny-python", num_speculative_token=3)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "def f"}, "def f"),
        ({"prompt": [3, 14]}, "314"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"text": "b"}]}]}, "ab"),
        ({"system": "a", "messages": [{"role": "user", "content": "b"}]}, "ab"),
        ({"instructions": "a", "input": [{"role": "user", "content": "b"}]}, "ab"),
        ({"messages": []}, ""),
        ({"messages": None, "model": "tiny"}, ""),
        ([], ""),
    ],
)
def test_the_text_by_which_requests_are_compared(body, text):
    assert prompt_of(json.dumps(body).encode()) == text


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"[" * 10**5])
def test_a_body_that_is_no_json_has_no_text(body):
    assert prompt_of(body) == ""

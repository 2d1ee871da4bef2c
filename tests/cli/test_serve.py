"""``specjax serve``: refusals before the start, and the end of a process under load."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from support.command_line import assert_one_line, models, specjax_main

from specjax.engine import memory

SIZES = ("--slots", "2", "--capacity", "256", "--chunk", "16", "--rounds", "2", "--port", "0")
BODY = dict(model="tiny", prompt=[7, 8, 9], max_tokens=120, ignore_eos=True, temperature=1.0, n=5)


def test_a_port_in_use_is_one_line_before_anything_is_loaded(specjax_main):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        found = specjax_main("serve", "--model", "absent", "--port", port)
    assert_one_line(found, f"port {port} of 127.0.0.1 cannot be used (Address already in use)")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--host", "203.0.113.7"), "port 0 of 203.0.113.7 cannot be used"),
        (("--port", "65536"), "--port: must be a whole number from 0 to 65535"),
        (("--slots", "0"), "--slots: must be"),
        (("--chunk", "48"), "chunk must be a power of two"),
        (("--widths", "2"), "widths must be below the 2 slots, not 2; leave it out"),
        (("--rounds", "65"), "must be a whole number from 1 to 64"),
        (("--api-key", ""), "--api-key: is empty"),
        (("--temperature", "1"), "option --temperature is unknown"),
        (("--model", "absent"), "absent"),
    ],
)
def test_bad_flags(specjax_main, models, flags, words):
    assert_one_line(specjax_main("serve", "--model", models["target"], *SIZES, *flags), words)


def test_without_its_packages_one_line_names_the_extra(specjax_main, models, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    found = specjax_main("serve", "--model", models["target"], *SIZES)
    assert_one_line(found, "specjax serve needs the package prometheus_client; install it with pip install 'specjax[")


def test_slots_that_do_not_fit_the_memory_are_one_line_with_figures(specjax_main, models, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 12_345)
    found = specjax_main("serve", "--model", models["target"], "--method", "none", *SIZES)
    assert_one_line(found, "the device has 12,345 bytes free; give fewer slots or widths, less capacity or less prefix")
    assert re.search(r"2 slots need 1\d\d,\d{3} bytes", found[2])
    found = specjax_main("serve", "--model", models["target"], "--method", "none", *SIZES, "--widths", "1")
    assert re.search(r"2 slots need 2\d\d,\d{3} bytes", found[2])  # with the row of the width 1


class Process:
    """A server in a process of its own, with clients in threads that each send one request."""

    def __init__(self, models, *flags: str, key: str = ""):
        command = [sys.executable, "-m", "specjax", "serve", "--model", models["target"], "--draft", models["draft"]]
        environment = os.environ | {"SPECJAX_API_KEY": key}
        flags = (*SIZES, "--name", "tiny", *flags)
        self.process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True, env=environment)
        line = self.process.stderr.readline()
        assert line.startswith("specjax: tiny is ready at http://127.0.0.1:"), line + self.process.stderr.read()
        self.url, self.client = line.split()[-1], httpx.Client(timeout=100)

    def send(self, count: int) -> tuple[list[threading.Thread], list]:
        """Starts clients, every other one with a stream. Returns them, and the list of their answers."""
        answers: list = [None] * count

        def ask(i: int) -> None:
            body = BODY | dict(seed=i, stream=bool(i % 2))
            answers[i] = self.client.post(f"{self.url}/completions", json=body)

        clients = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
        for client in clients:
            client.start()
        return clients, answers

    def wait(self, clients) -> int:
        for client in clients:
            client.join()
        return self.process.wait(20)


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing_that_was_accepted(models):
    server = Process(models)
    clients, before = server.send(8)
    for client in clients:
        client.join()
    clients, after = server.send(8)
    time.sleep(0.3)  # all have connected, and the work takes longer
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    late = server.client.get(server.url.replace("/v1", "/health"))  # the port is open until the last answer
    assert late.status_code == 503 and "the server stops" in late.json()["error"]["message"]
    assert server.wait(clients) == 0
    texts = [[_texts(answer) for answer in answers] for answers in (before, after)]
    assert texts[0] == texts[1] and len({text for own in texts[0] for text in own}) == 40
    said = [line for line in server.process.stderr.read().splitlines() if not line.startswith("specjax: compiled ")]
    assert said == ["specjax: stopping; a second signal ends at once"]


def _texts(answer: httpx.Response) -> list[str]:
    """The five texts of an answer or of a stream that is complete."""
    assert answer.status_code == 200, answer.text
    chunks = [answer.text]
    if "event-stream" in answer.headers["content-type"]:
        *chunks, end = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert end == "[DONE]"
    texts = [""] * 5
    for choice in (choice for chunk in chunks for choice in json.loads(chunk)["choices"]):
        texts[choice["index"]] += choice["text"]
    return texts


@pytest.mark.slow
def test_an_idle_connection_stays_open_longer_than_clients_keep_it(models):
    """The official client closes one after 5 seconds. A server that closes it at that moment breaks a request."""
    server = Process(models)
    with httpx.Client(limits=httpx.Limits(keepalive_expiry=60)) as client:
        ask = lambda: client.get(f"{server.url}/models").extensions["network_stream"].get_extra_info("client_addr")
        address = ask()
        time.sleep(6)
        assert ask() == address
    server.process.send_signal(signal.SIGTERM)
    assert server.wait([]) == 0


@pytest.mark.slow
def test_a_load_balancer_sees_the_end_before_requests_are_refused(models):
    server = Process(models, "--drain-delay", "2")
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    health = server.client.get(server.url.replace("/v1", "/health"))
    assert health.status_code == 503 and health.json()["status"] == "draining"
    clients, answers = server.send(2)
    assert server.wait(clients) == 0
    for answer in answers:
        _texts(answer)


@pytest.mark.slow
def test_after_the_deadline_requests_that_are_left_get_503(models):
    server = Process(models, "--deadline", "0")
    clients, answers = server.send(8)
    time.sleep(0.3)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(clients) == 0
    refused = [answer for answer in answers if answer.status_code == 503 or "service_unavailable" in answer.text]
    assert refused and all("the server stops" in answer.text for answer in refused)
    for answer in set(answers) - set(refused):
        _texts(answer)


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_the_key_comes_from_the_environment(models):
    server = Process(models, "--queue", "100", key="k")
    assert httpx.get(f"{server.url}/models").status_code == 401
    assert httpx.get(f"{server.url}/models", headers={"Authorization": "Bearer k"}).status_code == 200

    def ask() -> None:
        headers = {"Authorization": "Bearer k"}
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{server.url}/completions", json=BODY | dict(n=100), headers=headers, timeout=100)

    client = threading.Thread(target=ask)
    client.start()
    time.sleep(0.3)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    assert server.wait([client]) == 128 + signal.SIGTERM

"""Requests that ask for too much, late requests, and the order of those that wait, over HTTP."""

import json
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
from support.serving import wait_until

from specjax.requests import constraint
from specjax.serve import streams

BODY = dict(model="bytes", prompt="hi", max_tokens=4, temperature=0, ignore_eos=True)
SLOTS, LONG = 2, dict(max_tokens=900)


@pytest.fixture
def post(url, app):
    yield lambda **fields: httpx.post(f"{url}/v1/completions", json=BODY | fields, timeout=60)
    wait_until(lambda: app.state.gate.count == 0 and not app.state.engine.has_work)


@pytest.fixture
def unread(url):
    """Begins a stream of several long texts that nobody reads. Returns its connection."""
    clients = []

    def unread(**fields) -> socket.socket:
        data = json.dumps(BODY | LONG | dict(n=SLOTS, stream=True, specjax_rounds=True) | fields).encode()
        place = urlsplit(url)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect((place.hostname, place.port))
        clients.append(client)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        return client

    yield unread
    for client in clients:
        client.close()


def test_a_request_ends_at_its_timeout(post, app):
    answer = post(timeout=0.05, **LONG)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (504, "timeout_error")
    assert "did not end in its timeout of 0.05 s" in error["message"]
    last = post(timeout=0.05, stream=True, **LONG).text.split("\n\n")[-2]
    assert "did not end in its timeout" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert post(timeout=60).status_code == 200
    wait_until(lambda: not app.state.engine.has_work)


@pytest.fixture
def held(monkeypatch):
    """Holds back the compilation of expressions until the event is set."""
    released, compiled = threading.Event(), constraint._make_table
    monkeypatch.setattr(constraint, "_make_table", lambda *given: released.wait(30) and compiled(*given))
    yield released
    released.set()


def test_a_timeout_counts_while_a_constraint_is_compiled(post, held):
    assert post(regex="[a-f]{2}[0-9]", ignore_eos=False, timeout=0.1).status_code == 504
    held.set()


def test_users_and_priorities_order_the_requests_that_wait(post, app):
    """Two users' requests alternate while the slots are taken; a lower priority number is first."""
    order: list[str] = []

    def ask(name: str, **fields) -> None:
        assert post(**fields).status_code == 200
        order.append(name)

    busy = threading.Thread(target=ask, args=("busy",), kwargs=dict(n=SLOTS, **LONG))
    busy.start()
    wait_until(lambda: app.state.engine.num_running == SLOTS)
    waiting = [("a0", dict(user="a")), ("a1", dict(user="a")), ("a2", dict(user="a")), ("b0", dict(user="b"))]
    waiting += [("first", dict(user="a", priority=-1))]
    threads = []
    for count, (name, fields) in enumerate(waiting, 1):
        threads.append(threading.Thread(target=ask, args=(name,), kwargs=fields | dict(max_tokens=40)))
        threads[-1].start()
        wait_until(lambda: app.state.engine.num_waiting == count)
    for thread in (busy, *threads):
        thread.join()
    order.remove("busy")
    assert order.index("first") < 2 and {*order[:3]} == {"first", "a0", "b0"}


def test_a_stream_that_nobody_reads_gives_its_slots_to_others(post, unread, app, monkeypatch):
    monkeypatch.setattr(streams, "_PATIENCE", 0.2)
    launch = app.state.engine.programs.launch
    monkeypatch.setattr(app.state.engine.programs, "launch", lambda *given: time.sleep(0.02) or launch(*given))
    unread(logprobs=2)
    wait_until(lambda: app.state.engine.num_running == SLOTS)
    handles = [row.handle for row in app.state.engine._scheduler.rows]
    assert post().status_code == 200
    assert all(len(handle.token_ids) < 900 for handle in handles)


def test_a_stream_that_nobody_reads_keeps_no_chunks(unread, app, monkeypatch):
    """The stream goes on while no other request waits, and ends after the longest time."""
    made, chunk = [], streams.Answer.chunk
    monkeypatch.setattr(streams.Answer, "chunk", lambda *given, **named: made.append(1) or chunk(*given, **named))
    monkeypatch.setattr(streams, "_LONGEST_PATIENCE", 3.0)
    unread(max_tokens=900)
    wait_until(lambda: app.state.engine.num_running == SLOTS)
    wait_until(lambda: not app.state.engine.has_work)
    assert len(made) < 900
    wait_until(lambda: app.state.gate.count == 0)


def test_expressions_that_are_compiled_do_not_hold_a_plain_request(post, held):
    found: list[int] = []
    ask = lambda i: found.append(post(regex=f"[a-f]{{{i}}}", ignore_eos=False).status_code)
    threads = [threading.Thread(target=ask, args=(i + 1,)) for i in range(40)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert post().status_code == 200 and found == []
    held.set()
    for thread in threads:
        thread.join()
    assert sorted(found) == [200] * 4 + [400] * 36  # the longer ones need more tokens than the request may have

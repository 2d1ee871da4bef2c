"""Measures how long a plain request waits while others ask a server for too much.

    python scripts/benchmarks/serve_attack.py [--model M] [--draft D] [--repeats 3]

A plain request is one completion of 8 tokens. It is timed alone, 0.5 s after 40 different regular expressions
were asked for at once, and 0.5 s after the begin of a stream of 16 texts of 1,900 tokens that nobody reads.
Prints the seconds of each.
"""

import argparse
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
from serve_process import NAME, Server, serve

TEXTS, TOKENS, EXPRESSIONS = 16, 1900, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-python")
    parser.add_argument("--draft", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    draft = ["--draft", args.draft] if args.draft else []
    report: dict[str, list[float]] = {"alone": [], "expressions": [], "unread": []}
    with serve("--model", args.model, *draft, "--method", "none", "--slots", TEXTS, "--warm-up", "all") as server:
        plain(server)
        ask(server, regex="[0-9]{3}")  # compiles the rounds with a table
        for i in range(args.repeats):
            report["alone"].append(plain(server))
            report["expressions"].append(among_expressions(server, i))
            report["unread"].append(beside_an_unread_stream(server))
            print(json.dumps({name: round(values[-1], 2) for name, values in report.items()}), flush=True)


def ask(server: Server, **fields) -> httpx.Response:
    body = dict(model=NAME, prompt="def mean(values):", max_tokens=8, temperature=0) | fields
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=600)


def plain(server: Server) -> float:
    """The seconds of a plain request."""
    began = time.perf_counter()
    answer = ask(server)
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - began


def among_expressions(server: Server, number: int) -> float:
    """The seconds of a plain request after many new expressions."""
    patterns = [f"(a{number}|b{i}|[c-{chr(100 + i % 20)}]{{2,9}}) = [0-9]{{1,{i + 2}}}" for i in range(EXPRESSIONS)]
    threads = [threading.Thread(target=ask, args=(server,), kwargs=dict(regex=one)) for one in patterns]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    seconds = plain(server)
    for thread in threads:
        thread.join()
    return seconds


def beside_an_unread_stream(server: Server) -> float:
    """The seconds of a plain request after a stream that nobody reads."""
    body = dict(model=NAME, prompt="def mean(values):", n=TEXTS, max_tokens=TOKENS, stream=True, ignore_eos=True)
    data = json.dumps(body).encode()
    place = urlsplit(server.url)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((place.hostname, place.port)) as client:
        client.sendall(head.encode() + data)
        while server.load < TEXTS:
            time.sleep(0.05)
        time.sleep(0.5)
        seconds = plain(server)
    server.wait_until_idle()
    return seconds


if __name__ == "__main__":
    main()

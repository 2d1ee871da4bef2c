"""Sends thousands of random requests to a server, and checks its texts, its errors and its memory.

    python scripts/benchmarks/serve_soak.py [--requests 2000] [--clients 32] [--minutes 20]

The requests are completions and chats with random options and priorities; streams, schemas, grammars and
calls of tools are among them. Of ten clients one goes away in the middle, and of twenty one sends a request
that is invalid. Every text must be that of a Generator in this process, for the same options and seed.
After each tenth the server must be idle; memory and device arrays must not have grown since the first
tenth, but for the store of beginnings. Memory is what stays resident after the allocator has returned its
free pages.
When all requests have been sent, they are sent again until the minutes have passed. At the end the
server gets SIGTERM under load, and must answer all requests that it has accepted. It must not have written
an error to its terminal. Writes serve_soak_<platform>.json and .md.
"""

import argparse
import asyncio
import json
import math
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import jax
import numpy as np
from page import Result, arguments, measured, section, with_folder
from serve_process import NAME, Server, serve

import specjax
from specjax.cli.parser import integer
from specjax.serve.tools.choice import calls_grammar
from specjax.serve.tools.formats import FORMATS
from specjax.tools.evaluate import held_out_prompts
from specjax.tools.evaluate.report import markdown_table

SIGN = "<tool_call>"
TEMPLATE = (
    f"{{% if tools %}}{SIGN}{{% endif %}}{{% for message in messages %}}{{{{ message['content'] }}}}{{% endfor %}}"
)
CAPACITY, SHORTEST, LONGEST, NEW = 256, 4, 48, 96
SAMPLES, LEAVING, WRONG = [1, 1, 1, 1, 2, 3], 0.1, 0.05
"""Numbers of samples, and the shares of clients that go away and of invalid requests."""

ROWS = 12
"""Rows of a batch of the Generator: a multiple of all numbers of samples."""

STORE = 2**21
"""The bytes of the server's store of beginnings. Device arrays may grow by these until it is full."""

STOPS = ["\n\n", "self", " = ", "return", "):", "None", "import", "if ", "in", "['", "0", "def "]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
SCHEMAS = [SCHEMA, {"type": "array", "items": {"type": "boolean"}, "maxItems": 6}, {"const": "a text without a choice"}]
GRAMMARS = ['start: "(" start ")" | "x"', 'start: /[a-z]{1,9}/ (", " /[0-9]{1,3}/)*']
ARGUMENTS = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "maximum": 9}}}
FUNCTIONS = [
    {"name": name, "parameters": ARGUMENTS | {"required": ["unit", "days"]}} for name in ("get_weather", "set")
]
CALLS = calls_grammar(FORMATS[0], FUNCTIONS, several=False, with_mark=True)
CALL = re.compile(r'<tool_call>\n\{"name": "(\w+)", "arguments": (\{.*\})\}\n</tool_call>')
INVALID = [
    (400, {"temperature": -1}),
    (400, {"max_tokens": 0}),
    (400, {"max_tokens": 10**6}),
    (400, {"tools": [{"type": "function"}]}),
    (400, {"unknown": 1}),
    (400, {"stop": 3}),
    (400, {"logit_bias": {"x": 1}}),
    (400, {"n": 10**4}),
    (400, {"seed": "a"}),
    (404, {"model": "other"}),
]
"""Fields that make a good request an invalid one, and the status of the answer."""


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
      options: options of a Generator's call for one prompt, with ``prompt`` or ``messages``.
      stream: whether the answer is a stream.
      priority: its place among requests that wait.
      leaves: whether the client goes away in the middle.
      invalid: the status that the answer must have and fields that make the request invalid, or None.
      expected: the text and the reason of its end, for each sample.
    """

    options: dict[str, Any]
    stream: bool
    priority: int
    leaves: bool
    invalid: tuple[int, dict] | None
    expected: list[tuple[str, str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if "messages" in self.options else "/v1/completions"

    @property
    def body(self) -> dict[str, Any]:
        """The body in the form of the protocol."""
        body = dict(self.options, model=NAME, stream=self.stream, priority=self.priority)
        if "messages" in body and "logprobs" in body:
            body["top_logprobs"], body["logprobs"] = body["logprobs"], True
        if (schema := body.pop("json_schema", None)) is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        if body.pop("tools", False):
            tools = [{"type": "function", "function": function} for function in FUNCTIONS]
            body |= {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
        return body | (self.invalid[1] if self.invalid else {})


TITLE = "A long run of the server"
QUESTION = "Does the server stay right, small and orderly under thousands of random requests?"
FOLLOWS = """
- Answers do not depend on the other requests, on clients that go away, or on how long the server has run.
- SIGTERM is a safe way to stop: accepted requests get their answers.
"""


def main():
    parser = with_folder(arguments(__doc__))
    parser.add_argument("--target", default="tiny-python")
    parser.add_argument("--draft", default="tiny-python-draft")
    parser.add_argument("--requests", type=integer(10), default=2000)
    parser.add_argument("--clients", type=integer(1), default=32)
    parser.add_argument("--slots", type=integer(1), default=16)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument(
        "--blocks", type=integer(1), help="blocks of the cache (default fixed slots); few make rows wait"
    )
    args = parser.parse_args()
    target = specjax.load(args.target, dtype="float32")
    texts = held_out_prompts(target.tokenizer, 200, LONGEST)
    report = soak(target, texts, args)
    result = Result(f"serve_soak_{jax.default_backend()}", folder=args.results)
    conditions = measured((args.target, args.draft), "float32")
    result.save(report | {"conditions": conditions})
    result.write(TITLE, QUESTION, [section(conditions, describe(report, args))], FOLLOWS)
    print(json.dumps(report, indent=1))
    raise SystemExit(not report["passed"])


def soak(target, texts: list[str], args: argparse.Namespace) -> dict:
    """Sends the requests to a server of ``target`` and the draft, and returns counts and figures."""
    target.tokenizer.chat_template = TEMPLATE
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        specjax.save(target, folder)
        flags = ["--model", folder, "--draft", args.draft, "--dtype", "float32", "--slots", args.slots]
        flags += ["--capacity", CAPACITY, *(("--blocks", args.blocks) if args.blocks else ("--prefix-bytes", STORE))]
        flags += ["--warm-up", "all"]  # compilation would hide how memory grows
        with serve(*flags, "--logprobs", 3, "--queue", 10 * args.clients, "--deadline", 600) as server:
            schemas = takes_schemas(server)
            asks = [random_ask(rng, texts, target.tokenizer, seed, schemas) for seed in range(args.requests)]
            asks = add_expected(target, args.draft, asks)
            report = asyncio.run(run(server, asks, args.clients, args.minutes))
            return report | {"schemas": schemas, "requests": args.requests}


def takes_schemas(server: Server) -> bool:
    """Whether the model's vocabulary can write a JSON text of the schema."""
    ask = Ask(dict(prompt="a", max_new_tokens=NEW, json_schema=SCHEMA), False, 0, False, None)
    return httpx.post(server.url + ask.path, json=ask.body, timeout=600).status_code == 200


def random_ask(rng: np.random.Generator, texts: list[str], tokenizer, seed: int, schemas: bool) -> Ask:
    """A request with random options. Each option is off in most requests."""
    some = lambda values: values[rng.integers(len(values))]
    ids = tokenizer.encode(some(texts))[: rng.integers(SHORTEST, LONGEST + 1)]
    text = tokenizer.decode(ids)
    prompt = some([dict(prompt=ids), dict(prompt=text), dict(messages=[{"role": "user", "content": text}])])
    options = prompt | dict(
        max_new_tokens=int(rng.integers(NEW // 8, NEW + 1)),
        temperature=float(some([0.0, 0.5, 1.0, 1.5])),
        seed=seed,
        n=some(SAMPLES),
        stop=[STOPS[i] for i in rng.choice(len(STOPS), rng.integers(0, 3), False)],
    )
    optional = dict(
        top_k=[5, 50],
        top_p=[0.5, 0.9],
        min_p=[0.02, 0.2],
        repetition_penalty=[0.9, 1.3],
        presence_penalty=[-0.5, 0.5],
        frequency_penalty=[-0.2, 0.4],
        logit_bias=[{str(ids[0]): 2.0, str(ids[-1]): -5.0}],
        stop_token_ids=[[ids[0]], ids[:3]],
        ignore_eos=[True],
        logprobs=[0, 3],
        json_schema=SCHEMAS * schemas,
    )
    options |= {name: some(values) for name, values in optional.items() if values and rng.random() < 0.2}
    if "json_schema" in options:  # it needs room for the shortest text, and the token that ends a text
        options["max_new_tokens"] = max(options["max_new_tokens"], NEW // 2)
        options.pop("ignore_eos", None)
    elif schemas and rng.random() < 0.2:
        options["grammar"] = some(GRAMMARS)
        options.pop("ignore_eos", None)
    elif schemas and "messages" in options:
        options = {name: options[name] for name in ("messages", "temperature", "seed", "n")} | {"tools": True}
        options["max_new_tokens"] = NEW
    leaves, invalid = rng.random() < LEAVING, rng.random() < WRONG
    stream, priority = bool(rng.random() < 0.5), int(rng.integers(-2, 3))
    return Ask(options, stream, priority, leaves and not invalid, some(INVALID) if invalid else None)


def add_expected(target, draft: str, asks: list[Ask]) -> list[Ask]:
    """The requests with the texts of a Generator, whose batches hold requests of equal form."""
    generator = specjax.Generator(target, draft=draft, capacity=CAPACITY)
    groups: dict[tuple, list[int]] = {}
    for i, ask in enumerate(asks):
        form = next((name for name in ("json_schema", "grammar", "tools") if name in ask.options), "")
        groups.setdefault(("messages" in ask.options, form, ask.options["n"]), []).append(i)
    found = list(asks)
    for (chat, form, n), members in groups.items():
        count = ROWS // n
        for at in range(0, len(members), count):
            batch = [asks[i].options for i in (members[at : at + count] * count)[:count]]
            if form == "tools":
                call = lambda own: dict(own, prompt=SIGN + own["messages"][0]["content"], grammar=CALLS)
                results = generate(generator, [call(own) for own in batch], "prompt", n)
            else:
                results = generate(generator, batch, "messages" if chat else "prompt", n)
            for i, own in zip(members[at : at + count], np.arange(len(results)).reshape(count, n)):
                texts = [(results[j].text, results[j].finish_reason) for j in own]
                if form == "tools":
                    texts = [("".join(CALL.fullmatch(text).groups()), "tool_calls") for text, _ in texts]
                found[i] = replace(asks[i], expected=texts)
    return found


def generate(generator: specjax.Generator, batch: list[dict], kind: str, n: int) -> list[specjax.Result]:
    """The results of a batch, ``n`` for each prompt, in order."""
    names = {name for options in batch for name in options} - {"prompt", "messages", "n", "logprobs", "tools"}
    defaults = {field: value for field, value in vars(specjax.requests.options.Options()).items() if field in names}
    options = {name: [own.get(name, defaults[name]) for own in batch] for name in sorted(names)}
    tokenizer = generator.target.tokenizer
    if kind == "messages":
        return generator(messages=[own["messages"] for own in batch], n=n, **options)
    encode = lambda prompt: tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return generator([encode(own["prompt"]) for own in batch], n=n, **options)


async def run(server: Server, asks: list[Ask], clients: int, minutes: float) -> dict:
    """Sends all requests in ten parts, again and again until the minutes have passed, and then the signal."""
    counts: Counter[str] = Counter()
    memory, began, size = [], time.perf_counter(), math.ceil(len(asks) / 10)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        while len(memory) < 10 or time.perf_counter() - began < 60 * minutes:
            at = len(memory) % 10 * size
            await in_parallel(client, asks[at : at + size], clients, counts)
            server.wait_until_idle()
            memory.append(server.memory())
            print(f"part {len(memory)}: {dict(counts)}, {memory[-1]}", file=sys.stderr, flush=True)
        metrics, seconds = server.metrics(), time.perf_counter() - began
        ended = await stop_under_load(
            client, server, [ask for ask in asks if not (ask.invalid or ask.leaves)][: 2 * clients]
        )
    first, last = memory[0], memory[-1]
    report = dict(counts, seconds=round(seconds), tokens=int(metrics["generation_tokens_total"]), parts=len(memory))
    report |= {"accepted": metrics["spec_decode_num_accepted_tokens_total"], "at_the_signal": ended, "memory": memory}
    report |= {
        "array_growth": last["bytes"] - first["bytes"],
        "resident_mb": [m["resident"] // 2**20 for m in (first, last)],
    }
    wrong = (
        counts["wrong"]
        + counts["wrong_error"]
        + ended["wrong"]
        + ended["exit_code"]
        + max(report["array_growth"] - STORE, 0)
    )
    report["errors"] = [line.strip() for line in server.said if "rror" in line]
    report["passed"] = not wrong and not report["errors"] and last["resident"] <= 1.05 * first["resident"]
    return report


async def in_parallel(client: httpx.AsyncClient, asks: list[Ask], clients: int, counts: Counter) -> None:
    """Sends the requests from ``clients`` clients, each of which sends its next one after an answer."""
    left = iter(asks)

    async def work() -> None:
        for ask in left:
            counts[await outcome(client, ask)] += 1

    await asyncio.gather(*(work() for _ in range(clients)))


async def outcome(client: httpx.AsyncClient, ask: Ask) -> str:
    """One word for the outcome of a request."""
    if ask.invalid:
        answer = await client.post(ask.path, json=ask.body)
        message = answer.json()["error"]["message"]
        return "invalid" if answer.status_code == ask.invalid[0] and message and "\n" not in message else "wrong_error"
    found: list = [["", None] for _ in ask.expected]
    is_whole = await (read_stream if ask.stream else read_answer)(client, ask, found)
    if not is_whole and all(whole.startswith(text) for (text, _), (whole, _) in zip(found, ask.expected)):
        return "left"
    if is_whole and [*map(tuple, found)] == ask.expected:
        return "right"
    print(f"wrong: {found} for {ask}", file=sys.stderr, flush=True)
    return "wrong"


async def read_answer(client: httpx.AsyncClient, ask: Ask, found: list) -> bool:
    """Fills ``found`` from an answer. Returns whether the client has waited for it."""
    try:
        answer = await client.post(ask.path, json=ask.body, timeout=0.2 if ask.leaves else None)
    except httpx.TimeoutException:
        return False
    add(found, answer.json())
    return True


async def read_stream(client: httpx.AsyncClient, ask: Ask, found: list) -> bool:
    """Fills ``found`` from a stream. Returns whether the client has read it to its end."""
    async with client.stream("POST", ask.path, json=ask.body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                add(found, json.loads(line.removeprefix("data: ")))
            if ask.leaves and any(text for text, _ in found):
                return False
    return True


def add(found: list, answer: dict) -> None:
    """Adds the texts and the ends of an answer, or of a chunk of one, to those of its samples."""
    if "error" in answer:
        print(answer["error"], file=sys.stderr, flush=True)
    for choice in answer.get("choices", []):
        held = choice.get("message") or choice.get("delta") or choice
        own = found[choice["index"]]
        own[0] += held.get("text") or held.get("content") or ""
        functions = [call["function"] for call in held.get("tool_calls") or ()]
        own[0] += "".join(one.get("name", "") + one.get("arguments", "") for one in functions)
        own[1] = choice["finish_reason"] or own[1]


async def stop_under_load(client: httpx.AsyncClient, server: Server, asks: list[Ask]) -> dict:
    """Sends SIGTERM when the server has accepted all ``asks``, and counts the answers that are whole."""
    before = server.metrics()["request_success_total"]
    tasks = [asyncio.ensure_future(outcome(client, ask)) for ask in asks]
    samples = sum(len(ask.expected) for ask in asks)
    while True:
        await asyncio.sleep(0.02)
        figures = await asyncio.to_thread(server.metrics)
        held = figures["num_requests_running"] + figures["num_requests_waiting"]
        if held + figures["request_success_total"] - before >= samples:
            break
    server.process.send_signal(signal.SIGTERM)
    found = Counter(await asyncio.gather(*tasks))
    code = await asyncio.to_thread(server.wait, 60)
    return {"held": int(held), "right": found["right"], "wrong": len(asks) - found["right"], "exit_code": code}


def describe(report: dict, args: argparse.Namespace) -> str:
    """The report as Markdown."""
    ended, (first, last) = report["at_the_signal"], report["resident_mb"]
    sent = sum(report.get(name, 0) for name in ("right", "wrong", "left", "invalid", "wrong_error"))
    arrays = [report["memory"][i]["arrays"] for i in (0, -1)]
    options = "all options" + ("" if report["schemas"] else " but constraints, which the vocabulary cannot write")
    rows = [
        ["answers with the texts of a Generator, with another text", f"{report.get('right', 0):,}, {report.get('wrong', 0)}"],
        ["clients that went away in the middle", f"{report.get('left', 0):,}"],
        ["invalid requests with the right status and a message, others",
         f"{report.get('invalid', 0):,}, {report.get('wrong_error', 0)}"],
        ["new tokens, of them drafted", f"{report['tokens']:,}, {int(report['accepted']):,}"],
        ["device arrays after the first tenth, at the end", f"{arrays[0]}, {arrays[1]}"],
        [f"growth of device arrays since the first tenth; {STORE:,} are the store of beginnings",
         f"{report['array_growth']:,} bytes"],
        ["resident memory in use after the first tenth, at the end", f"{first:,} MB, {last:,} MB"],
        ["idle moments at which no text ran or waited", report["parts"]],
        ["texts at SIGTERM; answers after it that were right, wrong",
         f"{ended['held']}; {ended['right']}, {ended['wrong']}"],
        ["exit code after SIGTERM, lines of errors that the server wrote",
         f"{ended['exit_code']}, {len(report['errors'])}"],
    ]  # fmt: skip
    blocks = f" with {args.blocks} blocks" if args.blocks else ""
    return (
        f"{sent:,} requests from {args.clients} clients in {report['seconds']:,} s, to {args.slots} slots{blocks}. "
        f"{report['requests']:,} different requests with {options}.\n\n{markdown_table(['count', 'figure'], rows)}"
    )


if __name__ == "__main__":
    main()

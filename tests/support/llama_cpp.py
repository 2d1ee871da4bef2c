"""Asks llama.cpp's server about a model, and prints a line of JSON for each answer.

python llama_cpp.py ids MODEL.gguf < texts.json: the token ids of each text.

python llama_cpp.py logprobs MODEL.gguf COUNT < ids.json: each token that llama.cpp adds to a prompt, and the
logprobs of all tokens before it.

A process of its own, because the server of llama.cpp has no end but that of its process.
"""

import json
import os
import sys
from collections.abc import Iterator
from urllib.request import Request, urlopen

import xllamacpp


def start_server(path: str) -> xllamacpp.Server:
    """A server that computes in float32. It ends with its last name."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 256
    params.warmup = False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def ask(server: xllamacpp.Server, endpoint: str, question: dict) -> dict:
    request = Request(
        server.listening_address + endpoint, json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urlopen(request))


def token_ids(server: xllamacpp.Server, texts: list[str]) -> Iterator[list[int]]:
    for text in texts:
        yield ask(server, "/tokenize", {"content": text})["tokens"]


def logprobs(server: xllamacpp.Server, ids: list[int], count: str) -> Iterator[tuple[int, dict]]:
    question = {
        "prompt": ids, "n_predict": int(count), "temperature": -1, "n_probs": 10**6, "ignore_eos": True,
        "cache_prompt": False,
    }  # fmt: skip
    for step in ask(server, "/completion", question)["completion_probabilities"]:
        yield step["id"], {entry["id"]: entry["logprob"] for entry in step["top_logprobs"]}


if __name__ == "__main__":
    name, path, *arguments = sys.argv[1:]
    answers = {"ids": token_ids, "logprobs": logprobs}[name](start_server(path), json.load(sys.stdin), *arguments)
    for answer in answers:
        print(json.dumps(answer), flush=True)
    os._exit(0)

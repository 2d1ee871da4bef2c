"""Prints the tokens that llama.cpp adds to a prompt, and the logprobs of all tokens at each step.

python llama_cpp_logprobs.py MODEL.gguf COUNT < ids.json

A process of its own, because the server of llama.cpp has no end but that of its process.
"""

import json
import os
import sys
from urllib.request import Request, urlopen

import xllamacpp

if __name__ == "__main__":
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx = 256
    params.warmup = False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)  # it ends with its last name
    question = {
        "prompt": json.load(sys.stdin), "n_predict": int(sys.argv[2]), "temperature": -1, "n_probs": 10**6,
        "ignore_eos": True, "cache_prompt": False,
    }  # fmt: skip
    body = json.dumps(question).encode()
    request = Request(server.listening_address + "/completion", body, {"Content-Type": "application/json"})
    for step in json.load(urlopen(request))["completion_probabilities"]:
        logprobs = {entry["id"]: entry["logprob"] for entry in step["top_logprobs"]}
        print(json.dumps([step["id"], logprobs]), flush=True)
    os._exit(0)

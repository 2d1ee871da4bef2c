"""Prints the token ids that llama.cpp gives to texts: python llama_cpp_ids.py MODEL.gguf < texts.json

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
    server = xllamacpp.Server(params)  # it ends with its last name
    address = server.listening_address + "/tokenize"
    for text in json.load(sys.stdin):
        request = Request(address, json.dumps({"content": text}).encode(), {"Content-Type": "application/json"})
        print(json.load(urlopen(request))["tokens"], flush=True)
    os._exit(0)

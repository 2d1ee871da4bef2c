#!/usr/bin/env bash
# From nothing to a language model that decodes speculatively: sets up .venv, continues a prompt, compares the methods.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

pair=(--model tiny-python --draft tiny-python-draft)
specjax generate "${pair[@]}" --prompt "def quicksort(" --max-new-tokens 128 --temperature 0.7 --top-p 0.9 --seed 1 --ignore-eos --stream
specjax compare "${pair[@]}" --methods none,ngram,draft_model --max-new-tokens 128 "$@"

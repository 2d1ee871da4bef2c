#!/usr/bin/env bash
# From nothing to speculative decoding: sets up .venv, continues a prompt, and compares methods.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

prompt=$'import json\nimport os\n\n\ndef load_settings(path):'
pair=(--model tiny-python --draft tiny-python-draft)
sampling=(--temperature 0.7 --top-p 0.9 --seed 1)
specjax generate "${pair[@]}" --method draft_model --prompt "$prompt" --max-new-tokens 128 "${sampling[@]}" --ignore-eos --stream
specjax compare "${pair[@]}" --methods none,ngram,draft_model --max-new-tokens 128 "$@"

#!/usr/bin/env bash
# From nothing to speculative decoding: sets up .venv, continues a prompt, and compares methods.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

pair=(--model tiny-python --draft tiny-python-draft)
specjax generate "${pair[@]}" --prompt "def find_files(directory):" --stop $'\n\n\n' --stream
specjax compare "${pair[@]}" --methods none,ngram,draft_model --max-new-tokens 128 "$@"

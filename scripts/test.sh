#!/usr/bin/env bash
# Checks the style and runs the tests.
#
#   scripts/test.sh [arguments of pytest]        the first tier: every behaviour, at most 8 minutes on two cores
#   scripts/test.sh --all [arguments of pytest]  everything: also statistics, soaks, the compilers of TPU and GPU, comparisons
#                                                with transformers on PyTorch, and the documentation, at most 40 minutes; no test may be skipped
#
# The times are those of an empty compilation cache (.pytest_cache/jax) without the set-up of .venv or .venv-all.
tier=(-m "not slow")
if [ "${1:-}" = "--all" ]; then
    shift
    tier=()
    export SPECJAX_ALL=1 SPECJAX_VENV="${SPECJAX_VENV:-.venv-all}" SPECJAX_EXTRAS="test,all-tests,docs"
fi
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

ruff format --check --quiet .
ruff check --quiet .
python -m pytest -n 2 --dist loadfile "${tier[@]}" "$@"

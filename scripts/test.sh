#!/usr/bin/env bash
# Checks the style and runs the tests.
#
#   scripts/test.sh [arguments of pytest]          the first tier
#   scripts/test.sh --all [arguments of pytest]    both tiers
#
# The first tier checks every behaviour. The second tier adds further cases of a behaviour,
# statistics, soaks, the compilers of TPU and GPU, comparisons with transformers on PyTorch, and the
# code of examples and of the documentation. With --all, no test may be skipped. The goals on two
# cores, besides the set-up, are 8 minutes for the first tier and 40 for both. A test that hangs ends
# the run.
tier=(-m "not slow")
if [ "${1:-}" = "--all" ]; then
    shift
    tier=()
    export SPECJAX_ALL=1 SPECJAX_VENV="${SPECJAX_VENV:-.venv-all}" SPECJAX_EXTRAS="test,all-tests,docs"
fi
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

ruff format --check --quiet .
ruff check --quiet .
if [ -n "${SPECJAX_ALL:-}" ]; then # half a minute to two minutes; needs no network
    PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright --project pyproject.toml
fi
python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 "${tier[@]}" "$@"

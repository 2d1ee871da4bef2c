#!/usr/bin/env bash
# Sets up .venv, checks the style and runs all tests; arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

ruff check --quiet .
python -m pytest -n 2 --dist loadfile "$@"

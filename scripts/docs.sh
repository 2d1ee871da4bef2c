#!/usr/bin/env bash
# Builds the documentation with its API reference into build/docs; open build/docs/index.html.
# The reference is built from the docstrings. A broken link is an error, and so is a docstring that
# does not fit its function.
#
#   scripts/docs.sh [arguments of mkdocs build]
export SPECJAX_EXTRAS=docs SPECJAX_VENV="${SPECJAX_VENV:-.venv-docs}"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

python -m mkdocs build --strict "$@"

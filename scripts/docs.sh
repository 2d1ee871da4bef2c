#!/usr/bin/env bash
# Builds the documentation with its API reference into build/docs; open build/docs/index.html.
# Docstrings are read from the sources. A broken link or a docstring that does not fit its function is an error.
#
#   scripts/docs.sh [arguments of mkdocs build]
export SPECJAX_EXTRAS=docs SPECJAX_VENV="${SPECJAX_VENV:-.venv-docs}"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

python -m mkdocs build --strict "$@"

#!/usr/bin/env bash
# Runs the tests on a given Python, in an environment of its own.
#
#   scripts/test_python.sh VERSION [arguments of test.sh]      for example 3.12, or 3.13 --all
set -euo pipefail
version="${1:?give a version of Python, such as 3.12}"
shift
for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version"*/bin/python; do
    "$python" --version >/dev/null 2>&1 && break
    python=""
done
[ -n "$python" ] || { echo "specjax: error: Python $version is not installed here" >&2; exit 2; }
export SPECJAX_PYTHON="$python" SPECJAX_VENV=".venv-$version"
exec bash "$(dirname "${BASH_SOURCE[0]}")/test.sh" "$@"

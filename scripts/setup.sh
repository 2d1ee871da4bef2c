# The other scripts source this one. It makes .venv beside pyproject.toml, installs specjax into it,
# and enters it. A second run finds the stamp of the first and needs no network.
#
#   SPECJAX_EXTRAS  the extras to install, "test" by default
#   SPECJAX_VENV    the directory of the environment, ".venv" by default
#   SPECJAX_PYTHON  the interpreter of the environment, "python3" by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras="${SPECJAX_EXTRAS:-test}" venv="${SPECJAX_VENV:-.venv}"
if [ ! -x "$venv/bin/python" ]; then
    python="$(command -v "${SPECJAX_PYTHON:-python3}" || command -v python || true)"
    [ -n "$python" ] || { echo "specjax: error: no python3 here; install Python 3.11 or later" >&2; exit 2; }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { echo "specjax: error: $("$python" --version) is too old; install Python 3.11 or later" >&2; exit 2; }
    "$python" -m venv "$venv" 2>/dev/null ||
        { rm -rf "$venv" && "$python" -m pip install --quiet --user virtualenv && "$python" -m virtualenv --quiet "$venv"; }
fi
stamp="$({ echo "$extras"; cat pyproject.toml constraints.txt; "$venv/bin/python" --version; } | cksum)"
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
    echo "installing specjax into $venv ..."
    "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable ".[$extras]"
    echo "$stamp" >"$venv/stamp"
fi
export PATH="$PWD/$venv/bin:$PATH"

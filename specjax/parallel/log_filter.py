"""Reads what XLA's C++ code and specjax print about errors, and prints the first error in one line.

It runs as a process of its own and imports nothing of specjax.
"""

import sys

ERROR = "specjax: error:"
_FATAL = "JAX distributed service detected fatal errors"
_LINE = f"{ERROR} process 0 has ended; all processes end; start the command again on every host"


def main() -> None:
    said = False
    for line in sys.stdin:
        if not said and (line.startswith(ERROR) or _FATAL in line):
            said = True
            print(line.rstrip() if line.startswith(ERROR) else _LINE, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""The command line as ``python -m specjax``."""

import sys

from .cli.main import main

sys.exit(main())

"""``python -m specjax``."""

import sys

from .cli import main

sys.exit(main())

"""What the commands do: from parsed arguments to printed text, tables and JSON."""

from .generate import run_generate
from .measure import run_compare, run_verify
from .plan import run_ngrams, run_tune
from .train import run_train

__all__ = ["run_compare", "run_generate", "run_ngrams", "run_train", "run_tune", "run_verify"]

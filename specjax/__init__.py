"""Speculative decoding for JAX: many ways to draft, one way to verify, the target's own output.

    import specjax

    target = specjax.load("tiny-python")  # or a directory, or a hub id
    prompt = "def find_files(directory):"
    out = specjax.generate(target, prompt, draft="tiny-python-draft", max_new_tokens=48)
    print(out.text, out.stats.mean_acceptance_length)

Text in, text out: ``load``, ``generate``, ``Generator``, ``Engine``, ``beam_search``. The loop for
a JAX program: ``make_requests``, ``prefill``, ``step``, ``run``. ``METHODS`` lists the drafting
methods, and ``specjax.drafters`` has their classes.
"""

# ruff: noqa: E402

from .core.startup import watch_imports

watch_imports()  # before the imports that take time

# isort: split
from . import drafters
from .checkpoints.heads import load_drafter, save_head
from .checkpoints.hub import embedded
from .checkpoints.load import LanguageModel, load, save
from .core.sampling import SamplingParams
from .core.state import DecodeState, Requests
from .core.stats import Stats
from .core.tree import Tree
from .core.verdict import Verdict
from .drafters import METHODS
from .engine import Engine
from .errors import CheckpointError, ConfigError, NumericsError, RequestError, SpecjaxError
from .heads.base import Head
from .loop.decode import run, step
from .loop.drafter import Drafter
from .loop.prefill import make_requests, prefill
from .models.base import Model
from .models.config import ModelConfig
from .models.decoder import Decoder
from .parallel import make_mesh
from .requests.shared_vocabulary import restrict_draft
from .rules.acceptance import accept
from .text.beam_search import beam_search
from .text.boosted import load_boosted
from .text.generate import generate
from .text.generator import Generator
from .text.result import Result

__version__ = "0.1.0"

__all__ = [
    "METHODS", "CheckpointError", "ConfigError", "DecodeState", "Decoder", "Drafter", "Engine", "Generator", "Head",
    "LanguageModel", "Model", "ModelConfig", "NumericsError", "RequestError", "Requests", "Result", "SamplingParams",
    "SpecjaxError", "Stats", "Tree", "Verdict", "accept", "beam_search", "drafters", "embedded", "generate", "load",
    "load_boosted", "load_drafter", "make_mesh", "make_requests", "prefill", "restrict_draft", "run", "save",
    "save_head", "step",
]  # fmt: skip

"""Speculative decoding for JAX: every way to draft, one way to verify, output that is the target model's own."""

from .checkpoints.heads import load_drafter, save_head
from .checkpoints.hub import LanguageModel, embedded, load, save
from .decode import DecodeState, prefill, run, step
from .drafters import (
    METHODS,
    Adaptive,
    Block,
    Cascade,
    Drafter,
    DraftModel,
    DraftTree,
    DynamicTree,
    Eagle,
    Eagle2,
    Eagle3,
    EarlyExit,
    Hydra,
    LayerSkip,
    Lookahead,
    Medusa,
    Merged,
    Mtp,
    Ngram,
    Plain,
    Suffix,
    Switch,
    TokenRecycling,
)
from .errors import CheckpointError, ConfigError, NumericsError, RequestError, SpecjaxError
from .generate import Generator, generate
from .heads import Head
from .models.config import ModelConfig
from .models.decoder import Decoder
from .models.translated import Translated
from .parallel import make_mesh
from .result import Result
from .sampling import SamplingParams, sampling_params
from .stats import Stats
from .tree import Tree
from .verify import Verdict

__version__ = "0.1.0"

__all__ = [
    "METHODS", "Adaptive", "Block", "Cascade", "CheckpointError", "ConfigError", "DecodeState", "Decoder", "DraftModel", "DraftTree", "Drafter", "DynamicTree",
    "Eagle", "Eagle2", "Eagle3", "EarlyExit", "Generator", "Head", "Hydra", "LanguageModel", "LayerSkip", "Lookahead", "Medusa", "Merged", "ModelConfig", "Mtp",
    "Ngram", "NumericsError", "Plain", "RequestError", "Result",
    "SamplingParams", "SpecjaxError", "Stats", "Suffix", "Switch", "TokenRecycling", "Translated", "Tree",
    "Verdict", "embedded", "generate", "load", "load_drafter", "make_mesh", "prefill", "run", "sampling_params", "save", "save_head", "step",
]  # fmt: skip

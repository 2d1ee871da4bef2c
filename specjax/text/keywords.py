"""The keyword arguments of ``Generator`` and ``generate``, so that editors complete and check them.

``requests.options.Options`` describes the options of a request, and the classes in ``drafters``
those of the methods. A test compares the names.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from ..core.tree import Topology

T = TypeVar("T")
Each = T | Sequence[T]
"""A value for all prompts, or one for each prompt."""


class DraftingKeywords(TypedDict, total=False):
    """The options of the methods."""

    costs: str | None
    num_speculative_tokens: int | None
    prompt_lookup_max: int
    prompt_lookup_min: int
    ngram_statistics: str | None
    max_match: int
    min_token_prob: float
    store_tokens: int
    tree: Topology | str | Sequence[Sequence[int]] | None
    candidates: int
    window: int
    ngram_size: int
    guesses: int
    pool_guesses: int | None
    pool_from_prompt: bool
    draft_temperature: float | None
    draft_top_k: int | None
    draft_top_p: float | None
    draft_ahead: int
    siblings: str
    tree_nodes: int
    tree_depth: int
    tree_top_k: int
    tree_temperature: float
    inner_speculative_tokens: int
    exit_layer: int | None
    draft_confidence: float
    skip_attention: Sequence[int] | None
    skip_mlp: Sequence[int] | None
    draft_scheme: str
    attention_sinks: int
    draft_window: int
    cache_chunks: int
    chunk_size: int
    draft_cost: float
    draft_length: str
    verify_cost: float


class RowKeywords(TypedDict, total=False):
    """The options of a request with one sample, the last ones by their names elsewhere."""

    max_new_tokens: Each[int]
    min_new_tokens: Each[int]
    temperature: Each[float]
    top_k: Each[int]
    top_p: Each[float]
    min_p: Each[float]
    repetition_penalty: Each[float]
    presence_penalty: Each[float]
    frequency_penalty: Each[float]
    logit_bias: Each[Mapping[int, float] | None]
    allowed_tokens: Each[Sequence[int] | None]
    suppressed_tokens: Each[Sequence[int] | None]
    seed: Each[int | None]
    ignore_eos: Each[bool]
    stop: Each[str | Sequence[str] | None]
    stop_token_ids: Each[Sequence[int] | None]
    logprobs: Each[int | None]
    policy_logprobs: Each[bool]
    regex: Each[str | None]
    choices: Each[Sequence[str] | None]
    json_schema: Each[Mapping[str, Any] | str | None]
    grammar: Each[str | None]

    max_tokens: Each[int]
    min_tokens: Each[int]
    do_sample: bool
    response_format: Mapping[str, Any]


class RequestKeywords(RowKeywords, total=False):
    """The options of a request."""

    n: int
    num_return_sequences: int
    stop_strings: Each[str | Sequence[str] | None]


class GenerateKeywords(DraftingKeywords, RequestKeywords, total=False):
    """The options of ``generate``: those of a method, of a request, and of ``Generator``."""

    rule: str
    capacity: int | None
    processors: Sequence[Callable]
    feedback_log: str | Path | None

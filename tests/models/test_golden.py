"""Our logits against those of transformers, recorded by scripts/golden/make_golden.py. Needs no torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.golden import FILES, Case, read_golden
from support.parts import compile_parts

from specjax.core import cache as kv
from specjax.models import attention, past_attention
from specjax.models.decoder import Decoder

TOLERANCE = 1e-4

commit = jax.jit(kv.commit)


NAMES = [path.stem for path in FILES]
CACHED_IN_FIRST_TIER = ("llama_", "rope", "mistral")
CACHED = [pytest.param(name, marks=() if name.startswith(CACHED_IN_FIRST_TIER) else pytest.mark.slow) for name in NAMES]
"""The first tier reads a cache in dense models like Llama. In trees, ``test_families`` reads one in others too."""


@pytest.fixture(scope="module")
def case(request) -> Case:
    return read_golden(request.param)


@pytest.fixture(scope="module", autouse=True)
def small_programs():
    """Short blocks of the past, so that there are several and the last overlaps; see also ``support.parts``."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, past_attention):
            patch.setattr(module, "PAST_CHUNK", 8)
        compile_parts(patch)
        yield


def test_files_are_there():
    assert FILES


@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_whole_sequence(case: Case):
    B, S = case.tokens.shape
    check(whole(case.model, case.tokens, case.prompt)[0], case, np.zeros(B, int))


@pytest.mark.parametrize("case", CACHED, indirect=True)
def test_rest_at_once_after_a_cached_prefix(case: Case):
    start = prefixes(case)
    check(rest_at_once(case.model, case.tokens, start, case.prompt), case, start)


TOKEN_BY_TOKEN = ("llama_gqa", "rope_dynamic_cached", "mistral_sliding")


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=() if name in TOKEN_BY_TOKEN else pytest.mark.slow) for name in NAMES],
    indirect=True,
)
def test_rest_token_by_token_after_a_cached_prefix(case: Case):
    start = prefixes(case)
    check(token_by_token(case.model, case.tokens, start, case.prompt), case, start)


def prefixes(case: Case) -> np.ndarray:
    """Int32 [B], how many tokens of each row are in the cache: different lengths within the prompt."""
    B, S = case.tokens.shape
    return np.array([min(S // 2, case.prompt) - 3 * b for b in range(B)], np.int32)


def check(ours, case: Case, start: np.ndarray) -> None:
    """Compares logits [B, N, V] of the tokens from ``start`` [B] on with the recorded ones."""
    golden = np.take_along_axis(case.logits, span(start, ours.shape[1])[..., None], 1)
    assert np.abs(ours - golden).max() / np.abs(case.logits).max() < TOLERANCE


def span(start: np.ndarray, count: int) -> np.ndarray:
    """Positions [B, N] of ``count`` tokens from ``start`` [B] on."""
    return np.int32(start[:, None] + np.arange(count))


def score(model: Decoder, tokens: jax.Array, positions: np.ndarray, prompt: int, cache=None) -> tuple[jax.Array, tuple]:
    """Logits of the tokens at ``positions`` [B, N], which follow the cache; also their rows."""
    # Dynamic scaling rotates a prompt for its whole length, and a later token for the length up to itself.
    lengths = np.maximum(positions + 1, prompt)
    mask = np.tri(positions.shape[1], dtype=bool)
    chosen = np.take_along_axis(np.asarray(tokens), positions, 1)
    given = jax.device_put((chosen, positions, mask))
    out = model(*given, cache, rope_lengths=jax.device_put(lengths))
    return model.logits(out.hidden), out.rows


def whole(model: Decoder, tokens: jax.Array, prompt: int) -> tuple[jax.Array, tuple]:
    """Logits [B, S, V] without a cache, and the rows."""
    B, S = tokens.shape
    return score(model, tokens, span(np.zeros(B, int), S), prompt)


def prefilled(model: Decoder, tokens: jax.Array, start: np.ndarray, prompt: int) -> kv.KVCache:
    """A cache that holds ``start`` [B] tokens of each row; later positions are void."""
    B, S = tokens.shape
    _, rows = whole(model, tokens, prompt)
    return commit(
        kv.empty(model.config, B, S, jnp.float32), rows, span(np.zeros(B, int), S), start, valid=np.ones(B, bool)
    )


def rest_at_once(model: Decoder, tokens: jax.Array, start: np.ndarray, prompt: int) -> jax.Array:
    """Logits [B, N, V] of the tokens after a cached prefix, scored in one call."""
    return score(model, tokens, span(start, tokens.shape[1] // 2), prompt, prefilled(model, tokens, start, prompt))[0]


def token_by_token(model: Decoder, tokens: jax.Array, start: np.ndarray, prompt: int) -> jax.Array:
    """Logits [B, N, V] of the tokens after a cached prefix, scored and committed one by one."""
    cache, logits = prefilled(model, tokens, start, prompt), []
    for _ in range(tokens.shape[1] // 2):
        step, rows = score(model, tokens, np.asarray(cache.length)[:, None], prompt, cache)
        cache = commit(cache, rows, np.zeros_like(start)[:, None], cache.length + 1, valid=np.ones(start.shape, bool))
        logits.append(step)
    return np.concatenate(logits, 1)

"""Text in, text and statistics out: what most users call. Holds compiled functions and nothing else between calls."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from . import decode
from .drafters import OPTIONS, make_drafter
from .errors import RequestError
from .models.hub import LanguageModel, load
from .options import MOST_LOGPROBS, Options, batched
from .parallel import use_mesh_of
from .request import LARGEST, translated
from .result import results_of, settled
from .sampling import checked_processors
from .verify import resolve

Prompt = str | Sequence[int]

_LEAST_CAPACITY, _LEAST_CHUNK, _LARGEST_CHUNK = 256, 16, 512


class Generator:
    """Decodes prompts with one method. Compiles once for each batch size, capacity and prompt bucket (powers of two).

    Args:
      target: the model whose output is wanted.
      method: one of ``drafters.METHODS``; by default "draft_model" if a draft is given, else "none".
      draft: for methods that draft with a second model: a name, directory, hub id or loaded model.
      rule: acceptance rule, see ``verify``; "auto" is the best lossless one.
      capacity: positions of the cache; by default the smallest power of two that a call needs.
      processors: pure functions ``(logits [B, N, V], Context) -> logits`` compiled into the pipeline, after all built-in options
        but before temperature; see ``context.Context`` for what they may look back at.
      drafting: options of the method: num_speculative_tokens, prompt_lookup_max, tree and others, see its class in ``drafters``.
    """

    def __init__(
        self,
        target: LanguageModel,
        method: str | None = None,
        draft=None,
        *,
        rule: str = "auto",
        capacity: int | None = None,
        processors: Sequence[Callable] = (),
        **drafting,
    ):
        method = method or ("none" if draft is None else "draft_model")
        self.method, self.target = method, target
        self.draft, self.drafter = None, make_drafter(method, **drafting)
        if self.drafter.needs_draft:
            if draft is None:
                raise RequestError(f"method {method!r} needs a draft; name a smaller model of the same tokenizer")
            self.draft = draft if isinstance(draft, LanguageModel) else load(draft, dtype=str(target.model.embed[...].dtype))
            _check_pair(target, self.draft)
        elif draft is not None:
            raise RequestError(f"method {method!r} takes no draft; leave it out or use method 'draft_model'")
        self.rule_name, self.rule = rule, resolve(rule, self.drafter.sampled)
        self.capacity = capacity
        self.processors = checked_processors(tuple(processors), target.config.vocab_size)
        self._compiled: dict = {}

    def __call__(self, prompts, **options):
        """Continues a prompt (a string, or token ids) or a list of prompts as one ragged batch.

        ``options`` are those of ``options.Options``: max_new_tokens, temperature, seed, stop, regex and others. Returns a Result for one
        prompt, a list of them for a list. Raises RequestError for bad input, before any compilation, and NumericsError where the
        model produces NaN.
        """
        single = _is_one(prompts)
        ids = self._encode([prompts] if single else prompts)
        state, batch, times = self._start(ids, Options.of(options))
        state = self._run(state, LARGEST, times)
        results = results_of(state, batch, ids, self.target, self.rule_name, times)
        return results[0] if single else results

    def stream(self, prompt: Prompt, *, rounds: int = 4, **options) -> Iterator[str]:
        """Yields the text of one prompt as it grows, every few ``rounds``; the iterator's return value is the Result.

        What is shown stays: half a character waits for its other bytes, and what may be the beginning of a stop string for the rest.
        """
        if not _is_one(prompt):
            raise RequestError("stream takes one prompt; call the generator for a batch")
        ids = self._encode([prompt])
        state, batch, times = self._start(ids, Options.of(options))
        shown = ""
        while True:
            state = self._run(state, int(state.step) + rounds, times)
            (result,) = results_of(state, batch, ids, self.target, self.rule_name, times)
            finished = bool(state.done[0])
            text = result.text if finished else settled(result, self.target, batch.stop_strings[0])
            if text.startswith(shown) and len(text) > len(shown):
                yield text[len(shown) :]
                shown = text
            if finished:
                return result

    def _encode(self, prompts) -> list[list[int]]:
        if not prompts:
            raise RequestError("the list of prompts is empty; give at least one")
        config, rows = self.target.config, []
        for prompt in prompts:
            ids = self.target.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
            if len(prompt) == 0 or not ids:
                raise RequestError("the prompt is empty; give at least one token")
            if min(ids) < 0 or max(ids) >= config.vocab_size:
                raise RequestError(f"the prompt holds a token outside the vocabulary of {config.vocab_size}")
            if len(ids) > config.context:
                raise RequestError(f"the prompt has {len(ids)} tokens and the model's context is {config.context}; shorten it")
            rows.append(ids)
        return rows

    def _start(self, ids, options: Options):
        """The state after the prefill, the batch, and the times so far: prefill, decode, compile."""
        lengths = np.array([len(row) for row in ids])
        batch = batched(options, lengths, self.target, self.processors)
        if self.rule_name == "argmax_walk" and bool(jnp.any(batch.sampling.temperature > 0)):
            raise RequestError("rule 'argmax_walk' is greedy and not lossless at temperature above 0; use rule='auto'")
        capacity, chunk = self._sizes(int(lengths.max()), int(batch.limit.max()))
        tokens = np.zeros((len(ids), capacity), np.int32)
        for row, prompt in zip(tokens, ids):
            row[: len(prompt)] = prompt
        arrays = jax.tree.map(
            jnp.asarray,
            (tokens, np.int32(lengths), batch.sampling, batch.keys, np.int32(batch.limit), batch.stop_ids, batch.stops, batch.stopping),
        )
        asked = [n for n in batch.logprobs if n is not None]
        width = None if not asked else MOST_LOGPROBS if max(asked) else 0
        function = partial(decode.prefill, drafter=self.drafter, chunk=chunk, dtype=cache_dtype(self.target), logprobs=width)
        compiled, compiling = self._compile(("prefill", chunk, width), function, arrays)
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(self.target.model, self._draft_model, *arrays))
        return state, batch, [time.perf_counter() - began, 0.0, compiling]

    def _run(self, state, until: int, times: list):
        args = (state, jnp.int32(until))
        function = partial(decode.run, drafter=self.drafter, rule=self.rule)
        compiled, compiling = self._compile(("run",), function, args, donate_argnums=2)
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(self.target.model, self._draft_model, *args))
        times[1] += time.perf_counter() - began
        times[2] += compiling
        return state

    def _compile(self, key: tuple, function, args: tuple, **options):
        """The executable for ``key`` and the shapes of ``args``, and the seconds its compilation took now: 0 if it was there."""
        began = time.perf_counter()
        leaves, structure = jax.tree.flatten(args)
        key = (*key, structure, tuple(leaf.shape for leaf in leaves))
        new = key not in self._compiled
        if new:
            with use_mesh_of(self.target.model.embed[...]):
                self._compiled[key] = jax.jit(function, **options).lower(self.target.model, self._draft_model, *args).compile()
        return self._compiled[key], time.perf_counter() - began if new else 0.0

    @property
    def _draft_model(self):
        return None if self.draft is None else self.draft.model

    def _sizes(self, prompt: int, limit: int) -> tuple[int, int]:
        """Capacity and prefill chunk, both powers of two, so that prompts of a bucket share a program."""
        need = limit + self.drafter.depth + 1
        if self.capacity is not None and self.capacity < need:
            raise RequestError(f"capacity {self.capacity} is too small: prompt, max_new_tokens and one round need {need}")
        capacity = _power_of_two(max(self.capacity or need, _LEAST_CAPACITY))
        return capacity, min(_power_of_two(max(prompt - 1, _LEAST_CHUNK)), _LARGEST_CHUNK, capacity)


def generate(
    target: LanguageModel | str,
    prompts,
    method: str | None = None,
    draft=None,
    *,
    assistant_model=None,
    prompt_lookup_num_tokens: int | None = None,
    speculative_config: dict | None = None,
    rule: str = "auto",
    capacity: int | None = None,
    processors: Sequence[Callable] = (),
    **options,
):
    """Continues ``prompts`` in one call; see ``Generator`` for the arguments; ``options`` are its ``drafting`` and ``options.Options``.

    Also understands ``assistant_model`` and ``prompt_lookup_num_tokens`` of transformers, and the ``speculative_config`` of vLLM with
    ``method``, ``model``, ``num_speculative_tokens``, ``prompt_lookup_max`` and ``prompt_lookup_min``.
    """
    target = target if isinstance(target, LanguageModel) else load(target)
    drafting = {name: options.pop(name) for name in OPTIONS if name in options}
    setting = dict(drafting, method=method, draft=draft, rule=rule, capacity=capacity, processors=tuple(processors))
    setting = translated(setting, assistant_model, prompt_lookup_num_tokens, speculative_config)
    key = tuple(setting.items())
    if key not in target.generators:
        target.generators[key] = Generator(target, **setting)
    return target.generators[key](prompts, **options)


def cache_dtype(target: LanguageModel):
    """What keys and values are stored in: the weights' dtype, but float32 on CPU, which has no fast product of halves here."""
    return jnp.dtype(jnp.float32) if jax.default_backend() == "cpu" else target.model.embed[...].dtype


def _check_pair(target: LanguageModel, draft: LanguageModel) -> None:
    if draft.config.vocab_size != target.config.vocab_size:
        raise RequestError(
            f"draft {draft.name!r} has {draft.config.vocab_size} tokens and target {target.name!r} {target.config.vocab_size}; use a draft of the same vocabulary"
        )
    if draft.tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise RequestError(f"draft {draft.name!r} and target {target.name!r} have different tokenizers; use a draft of the same one")


def _is_one(prompts) -> bool:
    """Whether this is one prompt, a string or token ids, rather than a list of prompts."""
    return isinstance(prompts, str) or len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence, np.ndarray))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()

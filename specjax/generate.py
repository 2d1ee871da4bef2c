"""Text in, text and statistics out: what most users call. Holds compiled functions, and texts for a drafter that wants them, between calls."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from . import decode
from .checkpoints.heads import chosen, load_drafter
from .checkpoints.hub import LanguageModel, load
from .checks import LARGEST
from .drafters import OPTIONS, check_drafts, checked, default_method, heads_of, make_drafter, parameters, remembered, several
from .errors import RequestError
from .heads import Head
from .parallel import use_mesh_of
from .requests.options import MOST_LOGPROBS, Options, batched
from .requests.other_libraries import from_other_libraries
from .requests.shared_vocabulary import translate_draft
from .result import results_of, settled
from .sampling import checked_processors
from .verify import resolve

Prompt = str | Sequence[int]

_LEAST_CAPACITY, _LEAST_CHUNK, _LARGEST_CHUNK = 256, 16, 512


class Generator:
    """Decodes prompts with one method. Compiles once for each batch size, capacity and prompt bucket (powers of two).

    Args:
      target: the model whose output is wanted.
      method: one of ``drafters.METHODS``, or a list of those that draft chains, between which each row switches; by default
        "draft_model" if a draft is given, "merged" if several are, that of its kind if it is a trained head, else "none".
      draft: for methods that draft with a second model or a head: a name, directory, hub id or loaded model, or a list of them, of which
        a method that takes one uses the first. Vocabularies of models may differ from the target's, see ``models.translated``. Where
        the method needs a head and none is given, it is the one that comes with an embedded target.
      rule: acceptance rule, see ``verify``; "auto" is the best lossless one.
      capacity: positions of the cache; by default the smallest power of two that a call needs.
      processors: pure functions ``(logits [B, N, V], Context) -> logits`` compiled into the pipeline, after all built-in options
        but before temperature; see ``context.Context`` for what they may look back at.
      drafting: options of the method: num_speculative_tokens, prompt_lookup_max, tree and others, see its class in ``drafters``.
    """

    def __init__(
        self,
        target: LanguageModel,
        method: str | Sequence[str] | None = None,
        draft=None,
        *,
        rule: str = "auto",
        capacity: int | None = None,
        processors: Sequence[Callable] = (),
        **drafting,
    ):
        if method is None:
            draft = loaded(target, draft)
            method = default_method(draft)
        self.method, self.target = method if isinstance(method, str) else ",".join(method), target
        drafter, given = checked(make_drafter(method, **drafting), target.config), listed(draft)
        if given and not drafter.needs_draft:
            raise RequestError(f"method {self.method!r} takes no draft; leave it out or use method 'draft_model'")
        check_drafts(self.method, drafter, len(given))
        self.drafts = loaded(target, given if several(drafter) else given[: drafter.needs_draft])
        self.drafter, draft_model = self._headed(drafter) if heads_of(drafter) else (drafter, self._speaking(drafter))
        self.parameters = parameters(self.drafter, draft_model, target.config.vocab_size)
        self.rule_name, self.rule = rule, resolve(rule, self.drafter.sampled)
        self.capacity = capacity
        self.processors = checked_processors(tuple(processors), target.config.vocab_size)
        self._compiled: dict = {}

    def _headed(self, drafter) -> tuple:
        """The drafter for a trained head, and the head's module."""
        head = chosen(self.target, self.drafts, heads_of(drafter), self.method)
        self.drafts = (head,)
        return dataclasses.replace(drafter, head=head.config), head.module

    def _speaking(self, drafter):
        """The draft models for the target's tokens: all for a drafter that takes several, else the first."""
        for draft in self.drafts:
            if isinstance(draft, Head):
                kind = draft.config.kind
                raise RequestError(f"draft {draft.name!r} is a head of kind {kind!r}; method {self.method!r} needs a language model")
        models = tuple(translate_draft(draft, self.target) for draft in self.drafts)
        return models if several(drafter) else next(iter(models), None)

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
        self._remember(results)
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
                self._remember([result])
                return result

    def _remember(self, results: list) -> None:
        texts = [[*r.prompt_token_ids, *r.token_ids] for r in results]
        self.parameters = remembered(self.drafter, self.parameters, texts)

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
        state = jax.block_until_ready(compiled(self.target.model, self.parameters, *arrays))
        return state, batch, [time.perf_counter() - began, 0.0, compiling]

    def _run(self, state, until: int, times: list):
        args = (state, jnp.int32(until))
        function = partial(decode.run, drafter=self.drafter, rule=self.rule)
        compiled, compiling = self._compile(("run",), function, args, donate_argnums=2)
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(self.target.model, self.parameters, *args))
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
                self._compiled[key] = jax.jit(function, **options).lower(self.target.model, self.parameters, *args).compile()
        return self._compiled[key], time.perf_counter() - began if new else 0.0

    @property
    def draft(self) -> LanguageModel | None:
        """The first of ``drafts``."""
        return next(iter(self.drafts), None)

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
    method: str | Sequence[str] | None = None,
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
    method = tuple(method) if isinstance(method, list) else method
    setting = dict(drafting, method=method, draft=draft, rule=rule, capacity=capacity, processors=tuple(processors))
    setting = from_other_libraries(setting, assistant_model, prompt_lookup_num_tokens, speculative_config)
    setting["draft"] = listed(setting["draft"])
    key = tuple(setting.items())
    if key not in target.generators:
        target.generators[key] = Generator(target, **setting)
    return target.generators[key](prompts, **options)


def cache_dtype(target: LanguageModel):
    """What keys and values are stored in: the weights' dtype, but float32 on CPU, which has no fast product of halves here."""
    return jnp.dtype(jnp.float32) if jax.default_backend() == "cpu" else target.model.embed[...].dtype


def loaded(target: LanguageModel, draft) -> tuple[LanguageModel | Head, ...]:
    """The drafts that a user gave, see ``Generator``, those given by name in the target's dtype."""
    return tuple(given if isinstance(given, LanguageModel | Head) else load_drafter(given, target) for given in listed(draft))


def fitting(drafter, drafts: tuple) -> tuple:
    """Of several drafts those that a method drafts with: heads of its kinds, or language models."""
    kinds = heads_of(drafter)
    return tuple(d for d in drafts if (isinstance(d, Head) and d.config.kind in kinds if kinds else isinstance(d, LanguageModel)))


def listed(draft) -> tuple:
    """The drafts that a user gave, none, one or a list, as a tuple."""
    return () if draft is None else tuple(draft) if isinstance(draft, list | tuple) else (draft,)


def _is_one(prompts) -> bool:
    """Whether this is one prompt, a string or token ids, rather than a list of prompts."""
    return isinstance(prompts, str) or len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence, np.ndarray))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()

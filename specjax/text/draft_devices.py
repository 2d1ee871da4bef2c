"""Drafts on devices of their own: a round in two programs, and drafting while the target verifies.

    devices of the target    [ verify round 1 ]        [ verify round 2 ]
                            ^                  \\      ^                  \\
    devices of the draft    | [ look ahead ]    [ follow ] [ look ahead ]  [ follow ]

A round sends the drafted tree to the target, and the verdict back, with the taps that a trained
head reads. ``follow`` commits the verdict and drafts the next round. ``look_ahead`` takes neither
the verdict nor any other output of the round's verification, so both run at the same time. The host
enqueues all programs of a round, and then waits for one number: whether a row is unfinished.

The target's half is ``decode.step`` with a drafter that proposes the tree it was sent. The draft's
half has the state of the batch without the target's cache. It runs ``decode.commit`` and the
drafter's own functions. Keys come from the text alone, so the tokens are those of one program.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..checkpoints.load import LanguageModel
from ..core.cache import KVCache
from ..core.checks import LARGEST
from ..core.state import DecodeState
from ..core.tree import Tree
from ..core.verdict import Verdict
from ..drafters.parts.draft_ahead import Ahead, draft_ahead, drafts_ahead, propose_from
from ..loop import decode
from ..loop.drafter import Drafter, TrainedHead
from ..loop.prefill import prefill
from ..loop.wrapper import Wrapper
from ..models.base import Scored
from ..models.decoder import Decoder
from ..parallel import mesh_of, split_rows
from ..requests.batch import Batch
from .cache_dtype import dtype_beside
from .session import Decoding, Log, Session, shardings


class Sent(struct.PyTreeNode):
    """The message of the target's half after a round.

    Attributes:
      verdict: the verdict, cut at the row's end.
      taps: as in ``Output``, the taps of all nodes that the drafter reads.
      failed: bool [B], see ``DecodeState``.
    """

    verdict: Verdict
    taps: tuple
    failed: jax.Array


class DraftHalf(struct.PyTreeNode):
    """The draft's half of a batch.

    Attributes:
      state: the batch after ``propose``. Its cache has a length and no layers, and its records are
        void.
      tree: the proposed tree.
      hits: int32 [B], the rounds for which the draft had been made ahead.
    """

    state: DecodeState
    tree: Tree
    hits: jax.Array


@dataclasses.dataclass(frozen=True)
class Received(Wrapper):
    """The drafter of the target's half: it proposes the tree that ``draft`` is.

    Its state is for the other half: the taps of the prompt, and after a round verdict and taps.

    Attributes:
      drafter: the drafter of the other half.
    """

    drafter: Drafter

    def init(self, target, draft, tokens, lengths, taps, *, chunk, dtype) -> tuple:
        return taps

    def propose(self, target, draft, state, key):
        return draft, ()

    def commit(self, target, draft, state, tree, scored, verdict) -> tuple:
        return verdict, scored.taps


class OuterLayers(nnx.Module):
    """The target without its decoder layers, for heads, which share its embeddings and logits.

    A method that drafts with language models reads the configuration alone. It gets no weights.
    """

    def __init__(self, model: Decoder, needs):
        self.config = model.config
        for name in ("embed", "project_in", "norm", "norm_bias", "head", "project_out", "logit_bias"):
            setattr(self, name, getattr(model, name) if isinstance(needs, TrainedHead) else None)

    token_embeddings = Decoder.token_embeddings
    last_norm = Decoder.last_norm
    logits = Decoder.logits


def verify(target, state: DecodeState, tree: Tree, *, drafter: Received, rule: Callable):
    """The target's half of a round: the state, ``Sent``, and whether a row is unfinished."""
    state = decode.step(target, tree, state, drafter=drafter, rule=rule)
    verdict, taps = state.drafter
    return state.replace(drafter=()), Sent(verdict, taps, state.failed), jnp.any(~state.done)


def begin(target, draft, state: DecodeState, taps: tuple, *, drafter: Drafter, chunk: int, dtype) -> DecodeState:
    """The draft's half of the prefill."""
    drafted = drafter.init(target, draft, state.tokens, state.prompt_length, taps, chunk=chunk, dtype=dtype)
    return split_rows(state.replace(drafter=drafted), state.done.size)


def propose(target, draft, state: DecodeState, *, drafter: Drafter) -> DraftHalf:
    """The draft's half after a proposal."""
    key, _ = decode.round_keys(state, drafter.depth + 1)
    tree, drafted = drafter.propose(target, draft, state, key)
    whole = jax.lax.with_sharding_constraint(tree, PartitionSpec())
    return DraftHalf(state.replace(drafter=drafted), whole, jnp.zeros_like(state.prompt_length))


def look_ahead(target, draft, half: DraftHalf, *, drafter: Drafter) -> Ahead:
    """Drafts of the next round for likely verdicts on ``half.tree``."""
    return draft_ahead(drafter, target, draft, half.state, half.tree)


def follow(target, draft, half: DraftHalf, sent: Sent, ahead: Ahead | None, *, drafter: Drafter) -> DraftHalf:
    """The draft's half of a round: commits the verdict, and proposes the next tree."""
    void = jnp.zeros(())
    scored = Scored(void, (), sent.taps, logits=void)
    round = decode.Round(half.tree, half.state.drafter, scored, void, sent.verdict, sent.failed)
    state = decode.commit(target, draft, half.state, round, drafter=drafter)
    if ahead is None:
        return propose(target, draft, state, drafter=drafter)
    key, _ = decode.round_keys(state, drafter.depth + 1)
    tree, drafted, hit = propose_from(ahead, drafter, target, draft, state, key)
    return DraftHalf(state.replace(drafter=drafted), tree, half.hits + jnp.int32(hit & ~state.done))


class ApartSession(Session):
    """A session whose ``parameters`` are on devices that the target does not use."""

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter,
        parameters: Any,
        rule: Callable,
        capacity: int | None = None,
        log: Log | None = None,
    ):
        super().__init__(target, drafter, parameters, rule, capacity, log)
        self.looks_ahead = drafts_ahead(drafter)
        self.draft_mesh = next(mesh for mesh in map(mesh_of, jax.tree.leaves(parameters)) if mesh is not None)
        self.to_draft = NamedSharding(self.draft_mesh, PartitionSpec())
        first = next(iter(jax.tree.leaves(target.model)))
        self.to_target = first.sharding if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())
        self.parameters = jax.tree.map(self._beside_draft, parameters)
        self.outer = jax.device_put(OuterLayers(target.model, drafter.needs), self.to_draft)
        self.compile_seconds = 0.0

    def start(self, batch: Batch) -> Decoding:
        compiled = self.compile_seconds
        began = time.perf_counter()
        requests, static = self._prepare(batch)
        function = partial(prefill, drafter=Received(self.drafter), **static)
        state = self._enqueue(self.mesh, function, (self.target.model, None), (requests,))
        seen = state.replace(cache=KVCache((), state.cache.length), drafter=(), logprobs=None, rounds=None)
        seen = jax.device_put((seen, state.drafter), self.to_draft)
        state = self._repeat(state.replace(drafter=()), batch, self.mesh)
        static = dict(chunk=static["chunk"], dtype=dtype_beside(self.parameters))
        draft = self._repeat(self._of_draft(begin, seen, **static), batch, self.draft_mesh)
        half = self._of_draft(propose, (draft,))
        jax.block_until_ready((state, half))
        compile_seconds = self.compile_seconds - compiled
        seconds = time.perf_counter() - began - compile_seconds
        return Decoding(state, batch, prefill_seconds=seconds, compile_seconds=compile_seconds, draft=half)

    def _advance(self, decoding: Decoding, rounds: int | None) -> None:
        compiled = self.compile_seconds
        began = time.perf_counter()
        unfinished = not decoding.is_done
        for _ in range(LARGEST if rounds is None else rounds):
            if not unfinished:
                break
            unfinished = bool(jax.device_get(self._round(decoding)))
        jax.block_until_ready((decoding.state, decoding.draft))
        compile_seconds = self.compile_seconds - compiled
        decoding.decode_seconds += time.perf_counter() - began - compile_seconds
        decoding.compile_seconds += compile_seconds

    def update(self, target: LanguageModel) -> None:
        super().update(target)
        self.outer = jax.device_put(OuterLayers(target.model, self.drafter.needs), self.to_draft)

    def update_draft(self, parameters: Any) -> None:
        super().update_draft(jax.tree.map(self._beside_draft, parameters))

    def _beside_draft(self, leaf):
        """The array on the draft's mesh.

        Some arrays, such as a map between vocabularies, have no place yet.
        """
        return jax.device_put(leaf, self.to_draft) if mesh_of(leaf) is None else leaf

    def _round(self, decoding: Decoding) -> jax.Array:
        """Enqueues a round on both sets of devices. Returns whether a row is unfinished."""
        state = decoding.state
        half = decoding.draft
        ahead = None
        tree = jax.device_put(half.tree, self.to_target)
        function = partial(verify, drafter=Received(self.drafter), rule=self.rule)

        def target_options():
            return dict(donate_argnums=1, out_shardings=(shardings(state), self.to_target, self.to_target))

        def draft_options():
            return dict(donate_argnums=2, out_shardings=shardings(half))

        args = state, tree
        decoding.state, sent, unfinished = self._enqueue(
            self.mesh, function, (self.target.model,), args, target_options
        )
        if self.looks_ahead:
            ahead = self._of_draft(look_ahead, (half,))
        sent = jax.device_put(sent, self.to_draft)  # between two platforms this waits for the verdict
        decoding.draft = self._of_draft(follow, (half, sent, ahead), draft_options)
        return unfinished

    def _of_draft(self, function: Callable, args: tuple, options: Callable = dict, /, **static):
        """The result of a program of the draft's half."""
        function = partial(function, drafter=self.drafter, **static)
        return self._enqueue(self.draft_mesh, function, (self.outer, self.parameters), args, options)

    def _enqueue(self, mesh: Mesh | None, function: partial, modules: tuple, args: tuple, options: Callable = dict):
        """The result of ``function(*modules, *args)``, for which the host does not wait."""
        with jax.disable_jit(False):
            key = (function.func.__name__, *function.keywords.values())
            compiled, seconds = self.compile(key, function, modules, args, mesh, options)
            self.compile_seconds += seconds
            return compiled(*modules, *args)

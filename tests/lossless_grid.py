"""Every option, method and rule on a vocabulary of five, and the law that each must have, by enumeration in numpy.

The whole loop runs, prefill to last token; ``law`` knows nothing of it: no cache, no tree, no arrays over a batch.
"""

import dataclasses
import itertools
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from conftest import TINY, p_value, random_head, tiny_model, warped

from specjax import (
    Adaptive,
    Block,
    Cascade,
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
    decode,
)
from specjax.drafters import heads_of, parameters, several
from specjax.heads import (
    BlockConfig,
    BlockHead,
    Eagle3Config,
    Eagle3Head,
    EagleConfig,
    EagleHead,
    HydraConfig,
    HydraHeads,
    MedusaConfig,
    MedusaHeads,
    MtpConfig,
    MtpHead,
)
from specjax.requests.constraint import Automaton
from specjax.requests.stop_strings import StopAutomaton
from specjax.sampling import sampling_params
from specjax.training.losses import scores
from specjax.tree import expansion, from_paths
from specjax.verify import RULES

V, LENGTH, DRAFTS, CAPACITY, END = 5, 3, 2, 12, 3


@dataclasses.dataclass(frozen=True)
class Case:
    """Options, a prompt and a token that ends a row."""

    prompt: tuple[int, ...] = (1, 2, 1)  # a repetition, for n-grams
    stop: int = -1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_new_tokens: int = 0
    bias: tuple[float, ...] = (0.0,) * V
    language: str = ""
    stop_string: tuple[int, ...] = ()


NEVER = -np.inf
CASES = {
    "default": Case(),
    "temperature": Case(temperature=0.7),
    "temperature 0": Case(temperature=0.0),
    "top_k": Case(top_k=2),
    "top_p": Case(top_p=0.7),
    "min_p": Case(min_p=0.3),
    "repetition_penalty": Case(repetition_penalty=1.7),
    "presence_penalty": Case(presence_penalty=1.5),
    "frequency_penalty": Case(frequency_penalty=-0.9),
    "logit_bias": Case(bias=(1.0, -0.5, 0.0, 0.7, 0.0)),
    "allowed_tokens": Case(bias=(NEVER, 0.0, 0.0, NEVER, 0.0)),
    "suppressed_tokens": Case(bias=(0.0, 0.0, NEVER, 0.0, 0.0)),
    "stop_token_ids": Case(stop=END),
    "min_new_tokens": Case(stop=END, min_new_tokens=2),
    "stop": Case(stop_string=(1, 2)),
    "regex": Case(stop=END, language="(12*1)*"),
    "one token of prompt": Case(prompt=(4,), temperature=1.2, top_p=0.95),
    "all together": Case(
        stop=END, temperature=0.8, top_k=4, top_p=0.95, min_p=0.02, repetition_penalty=1.3, presence_penalty=0.4,
        frequency_penalty=0.3, min_new_tokens=1, bias=(0.3, 0.0, 0.5, 0.0, NEVER), language="([01]|2[01]*2)*", stop_string=(2, 2),
    ),
}  # fmt: skip

CONFIG = TINY.replace(
    vocab_size=V, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, num_kv_heads=1, max_position_embeddings=CAPACITY
)

BRANCHED = from_paths([(0,), (1,), (0, 0), (1, 1)])
MEDUSA = MedusaConfig(16, 1, V, num_heads=DRAFTS)
DFLASH = BlockConfig(CONFIG, 16, 1, (0, 1), mask_token=V - 1, block_size=DRAFTS + 1)
DSPARK = dataclasses.replace(
    DFLASH, block_size=DRAFTS, from_root=True, markov_rank=3, markov="rnn", confidence=True, confidence_markov=True
)
EAGLE = EagleConfig(CONFIG, target_layers=1)
EAGLE3 = Eagle3Config(CONFIG, 16, 1, taps=(0, 1), draft_vocab_size=V - 1)
MTP = MtpConfig(CONFIG, target_layers=1)
# The second is added to the seed: of these heads at least one draft in ten is kept.
HEADS = {
    "medusa": (MedusaHeads, 0),
    "hydra": (HydraHeads, 3),
    "block": (BlockHead, 3),
    "eagle": (EagleHead, 4),
    "eagle3": (Eagle3Head, 3),
    "mtp": (MtpHead, 0),
}

METHODS = {
    "none": (Plain(), ("sample_and_walk",)),
    "ngram": (Ngram(DRAFTS), ("sample_and_walk",)),
    "suffix": (Suffix(DRAFTS, max_match=2), ("sample_and_walk",)),
    "token_recycling": (TokenRecycling(expansion((2, 1)), 2), ("sample_and_walk",)),
    "lookahead": (Lookahead(window=3, ngram_size=3, guesses=3, pool_from_prompt=True), ("sample_and_walk",)),
    "draft_model": (
        DraftModel(DRAFTS),
        ("block", "rejection", "recursive_rejection", "multi_step", "k_seq", "traversal", "sample_and_walk"),
    ),
    "tree": (DraftTree(expansion((2, 1))), ("recursive_rejection", "traversal")),
    "tree, independent siblings": (DraftTree(expansion((2, 1)), "independent"), ("multi_step", "k_seq")),
    "tree, likeliest siblings": (DraftTree(expansion((2, 1)), "top_k"), ("sample_and_walk",)),
    "dynamic_tree": (DynamicTree(tree_nodes=4, tree_depth=2, tree_top_k=2), ("sample_and_walk",)),
    "early_exit": (EarlyExit(1, DRAFTS, draft_confidence=0.6), ("block",)),
    "layer_skip": (LayerSkip((), (0,), DRAFTS, draft_confidence=0.6), ("block",)),
    "merged": (Merged(DRAFTS), ("multi_step",)),
    "cascade": (Cascade(DRAFTS, inner_speculative_tokens=2), ("block",)),
    "medusa": (Medusa(BRANCHED, MEDUSA), ("sample_and_walk",)),
    "hydra": (Hydra(BRANCHED, HydraConfig(16, 1, V, num_heads=DRAFTS)), ("sample_and_walk",)),
    "hydra, prefix layer": (Hydra(BRANCHED, HydraConfig(16, 1, V, num_heads=DRAFTS, layers=CONFIG)), ("sample_and_walk",)),
    "block": (Block(head=DFLASH), ("sample_and_walk",)),
    "block, tree": (Block(tree_nodes=4, tree_top_k=2, head=DFLASH), ("sample_and_walk",)),
    "block, drawn": (Block(draft_confidence=0.4, head=DSPARK), ("block", "rejection")),
    "switch": (Switch((Ngram(1), DraftModel(DRAFTS)), draft_cost=0.2), ("block", "rejection")),
    "draft_model, confidence": (Adaptive(DraftModel(DRAFTS), "confidence", draft_confidence=0.7), ("block", "rejection")),
    "draft_model, ema": (Adaptive(DraftModel(DRAFTS), "ema", draft_cost=0.33), ("block",)),
    "eagle": (Eagle(expansion((2, 1)), head=EAGLE), ("recursive_rejection",)),
    "eagle2": (Eagle2(tree_nodes=4, tree_depth=2, tree_top_k=2, head=EAGLE), ("sample_and_walk",)),
    "eagle3": (Eagle3(tree_nodes=4, tree_depth=2, tree_top_k=2, head=EAGLE3), ("sample_and_walk",)),
    "eagle3, one pass": (
        Eagle3(tree_nodes=4, tree_depth=2, tree_top_k=2, head=dataclasses.replace(EAGLE3, mask_token=0)),
        ("sample_and_walk",),
    ),
    "mtp": (Mtp(DRAFTS, head=MTP), ("block",)),
    "mtp, two modules": (Mtp(DRAFTS, head=dataclasses.replace(MTP, modules=2)), ("block",)),
}

CONSTRAINT = Automaton(  # written by hand: state 0 allows all; 1 and 2 are the first language, 3 and 4 the second; 1 and 3 are final
    next=jnp.array([[0] * V, [-1, 2, -1, 1, -1], [-1, 1, 2, -1, -1], [3, 3, 4, 3, -1], [4, 4, 3, -1, -1]], jnp.int32),
    classes=jnp.arange(V),
    shortest=jnp.array([0, 0, 1, 0, 1], jnp.int32),
    longest=jnp.full(5, 2**30, jnp.int32),
)
BEGIN = {"": 0, "(12*1)*": 1, "([01]|2[01]*2)*": 3}
STOPS = StopAutomaton(  # state 0 matches nothing; of (1, 2): 1 begins, 2 after a 1; of (2, 2): 3 begins, 4 after a 2; 5 is the end
    next=jnp.array([[0] * V, [1, 2, 1, 1, 1], [1, 2, 5, 1, 1], [3, 3, 4, 3, 3], [3, 3, 5, 3, 3], [5] * V], jnp.int32),
    classes=jnp.arange(V),
    accept=jnp.arange(6) == 5,
)
FIRST = {(): 0, (1, 2): 1, (2, 2): 3}


@cache
def model(seed: int):
    return tiny_model(seed, sharpness=15, config=CONFIG)


@cache
def head(config, seed: int):
    """A random head, right now and then; one of a draft vocabulary lacks token 1, which prompts and constraints are full of."""
    kind, more = HEADS[config.kind]
    found = random_head(kind, config, seed + more, 0.3)
    if config.kind == "eagle3":
        found.draft_to_target[...] = jnp.array([0, 1, 1, 1])
    return found


@cache
def target(drafter):
    """What is decoded: ``model(0)``. For an early exit, above another that does nothing, so that the law is the same."""
    if not isinstance(drafter, EarlyExit):
        return model(0)
    deeper = tiny_model(1, config=CONFIG, num_layers=2)
    deeper.embed, deeper.layers[1], deeper.norm, deeper.head = model(0).embed, model(0).layers[0], model(0).norm, model(0).head
    deeper.layers[0].out[...] *= 0
    deeper.layers[0].down[...] *= 0
    return deeper


_FASTER = {"xla_backend_optimization_level": 1}  # here programs run longer than they compile
prefill = jax.jit(decode.prefill, static_argnames=("drafter", "chunk", "dtype"), compiler_options=_FASTER)
run = jax.jit(decode.run, static_argnames=("drafter", "rule"), compiler_options=_FASTER)
score = jax.jit(scores)


def halved_after_repeat(logits, context):
    """A user's processor: after two equal tokens the even ones are half as strong."""
    last = context.last(2)
    repeat = (last[..., 0] == last[..., 1])[..., None]
    return jnp.where(repeat & (jnp.arange(V) % 2 == 0), logits / 2, logits)


def start(draft, drafter, seed: int, rows: int, processors: tuple = ()) -> decode.DecodeState:
    """All cases in one batch, ``rows`` of each."""
    cases = list(CASES.values())
    each = lambda values: np.repeat(np.array(values), rows, axis=0)
    of = lambda name: each([getattr(case, name) for case in cases])
    numbers = [f.name for f in dataclasses.fields(Case) if f.type in (float, int) and f.name != "stop"]
    tokens = each([case.prompt + (0,) * (CAPACITY - len(case.prompt)) for case in cases])
    lengths = each([len(case.prompt) for case in cases])
    sampling = sampling_params(
        len(tokens), **{name: of(name) for name in numbers}, bias=np.float32(of("bias")), constraint=CONSTRAINT,
        start=np.int32(each([BEGIN[case.language] for case in cases])), processors=processors,
    )  # fmt: skip
    arrays = (
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(lengths, jnp.int32),
        sampling,
        jax.random.split(jax.random.key(seed), len(tokens)),
        jnp.asarray(lengths + LENGTH, jnp.int32),
        jnp.asarray(of("stop")[:, None], jnp.int32),
        STOPS,
        jnp.asarray(each([FIRST[case.stop_string] for case in cases]), jnp.int32),
    )
    return prefill(target(drafter), parameters(drafter, draft, V), *arrays, drafter=drafter, chunk=4, dtype=jnp.float32)


def finish(draft, state, drafter, rule, until: int = 99) -> decode.DecodeState:
    return run(target(drafter), parameters(drafter, draft, V), state, jnp.int32(until), drafter=drafter, rule=RULES.get(rule, rule))


def observed(state: decode.DecodeState, rows: int) -> dict[str, np.ndarray]:
    """How often each continuation came out, by case."""
    tokens, lengths, done, failed = map(np.asarray, (state.tokens, state.cache.length, state.done, state.failed))
    assert done.all() and not failed.any()
    counts = {}
    for i, (name, case) in enumerate(CASES.items()):
        of_case, prompt = slice(i * rows, (i + 1) * rows), len(case.prompt)
        new = tokens[of_case, prompt : prompt + LENGTH]
        emitted = np.arange(LENGTH) < (lengths[of_case] + 1 - prompt)[:, None]
        counts[name] = np.bincount(code(np.where(emitted, new, V)), minlength=(V + 1) ** LENGTH)
    return counts


def draws(drafter, rule, seed: int, rows: int, calls: int, processors: tuple = (), draft=None) -> tuple[dict[str, np.ndarray], float]:
    """Counts over so many calls, and the mean rate at which drafts were emitted."""
    counts, rates = [], []
    if draft is None and heads_of(drafter):
        draft = head(drafter.head, seed)
    draft = draft or (tuple(model(seed + i) for i in range(drafter.needs_draft)) if several(drafter) else model(seed))
    for call in range(calls):
        state = finish(draft, start(draft, drafter, call, rows, processors), drafter, rule)
        counts.append(observed(state, rows))
        rates.append(float(state.counters.accepted_at.sum() / jnp.maximum(state.counters.drafted.sum(), 1)))
    return {name: sum(c[name] for c in counts) for name in CASES}, float(np.mean(rates))


def p_values(counts: dict[str, np.ndarray], processed: bool = False) -> dict[str, float]:
    """Of each case, and of all at once."""
    laws = {name: law(case, processed) for name, case in CASES.items()}
    pooled = p_value(np.concatenate([*counts.values()]), np.concatenate([*laws.values()]))
    return {name: p_value(counts[name], laws[name]) for name in CASES} | {"pooled": pooled}


def code(sequences: np.ndarray) -> np.ndarray:
    """A number for each sequence [n, LENGTH]; V stands for no token."""
    return np.ravel_multi_index(sequences.T, (V + 1,) * LENGTH)


@cache
def law(case: Case, processed: bool = False) -> np.ndarray:
    """Probability of each continuation: the target scores all texts at once, and each option acts by its definition."""
    texts = np.array([case.prompt + new for new in itertools.product(range(V), repeat=LENGTH)])
    logits = dict(zip(map(tuple, texts), np.asarray(score(model(0), jnp.asarray(texts, jnp.int32)), np.float64)))
    total = np.zeros((V + 1) ** LENGTH)

    def grow(new: tuple[int, ...], p: float):
        if len(new) == LENGTH or case.stop in new or ended_by_string(new, case.stop_string):
            total[code(np.array([new + (V,) * (LENGTH - len(new))]))] += p
            return
        text = case.prompt + new
        after = logits[text + (0,) * (LENGTH - len(new))][len(text) - 1]
        for token, chance in enumerate(distribution(after, case, new, processed)):
            if chance > 0:
                grow((*new, token), p * chance)

    grow((), 1.0)
    return total


def distribution(logits: np.ndarray, case: Case, new: tuple[int, ...], processed: bool) -> np.ndarray:
    """Of the next token after prompt and ``new``: the options in the order of transformers, one after another."""
    logits = logits + np.array(case.bias)
    for token in set(case.prompt + new):
        logits[token] *= case.repetition_penalty if logits[token] < 0 else 1 / case.repetition_penalty
    for token in set(new):
        logits[token] -= case.presence_penalty + case.frequency_penalty * new.count(token)
    if len(new) < case.min_new_tokens and case.stop >= 0:
        logits[case.stop] = NEVER
    if case.language:
        logits[[not can_end(case, (*new, token)) for token in range(V)]] = NEVER
    text = case.prompt + new
    if processed and len(text) > 1 and text[-1] == text[-2]:
        logits[::2] /= 2
    return warped(logits, case.temperature, case.top_k, case.top_p, case.min_p)


def can_end(case: Case, new: tuple[int, ...]) -> bool:
    """Whether ``new`` is the beginning of a match of the language, or one and the end token, that fits into LENGTH tokens."""
    spelled = lambda tokens: "".join(map(str, tokens))
    if new[-1] == case.stop:
        return re.fullmatch(case.language, spelled(new[:-1])) is not None
    room = LENGTH - len(new)
    ways = (more for n in range(room + 1) for more in itertools.product(range(V), repeat=n))
    return any(case.stop not in more and re.fullmatch(case.language, spelled(new + more)) for more in ways)


def ended_by_string(new: tuple[int, ...], string: tuple[int, ...]) -> bool:
    return bool(string) and any(new[i : i + len(string)] == string for i in range(len(new)))

"""Block heads against float64 numpy that reads every text from its beginning, without a cache."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoding import rounds, spell_paths, texts
from support.models import TINY, language_model, on_mesh, random_head, random_prompts, tiny_model
from support.numpy_layer import gate_and_up
from support.program import MOVES, Program
from support.program import TARGET as WIDE
from support.reference import array, assert_greedy, log_softmax, normed, read_target, take_best_sequences

from specjax import ConfigError, Generator, RequestError, make_mesh
from specjax.core.cache import KVCache
from specjax.drafters import BlockDrafter
from specjax.drafters.parts.best_first import best_first
from specjax.heads import BlockConfig, BlockHead, Head
from specjax.models.draft_vocabulary import LACKING
from specjax.tools.plan import hlo
from specjax.training.run import cast

V, TAPS, ROUNDS = 7, (1, 2), 8
TARGET = tiny_model(0, 8.0, vocab_size=V)
E = TARGET.config.hidden_size
PROMPTS = [[3], *random_prompts(7, 30, V, seed=4)]
LAYERS = TINY.replace(vocab_size=V, num_layers=2, qk_norm=True)
OWN = LAYERS.replace(hidden_size=40, intermediate_size=24, num_heads=2, num_kv_heads=1, head_dim=12, num_layers=1)
CONFIGS = {
    "in place": BlockConfig(LAYERS, E, 2, TAPS, mask_token=6, block_size=4, confidence=True),
    "causal": BlockConfig(OWN, E, 2, TAPS, mask_token=5, block_size=6, causal=True, own_embedding=True, own_head=True),
    "from the root": BlockConfig(
        LAYERS.replace(num_layers=1),
        E,
        2,
        TAPS,
        mask_token=6,
        block_size=4,
        from_root=True,
        markov_rank=5,
        markov="gated",
        confidence=True,
        confidence_markov=True,
    ),
    "recurrent": BlockConfig(
        OWN,
        E,
        2,
        TAPS,
        5,
        block_size=4,
        from_root=True,
        markov_rank=3,
        markov="rnn",
        confidence=True,
        own_embedding=True,
        own_head=True,
    ),
    "vanilla": BlockConfig(
        OWN,
        E,
        2,
        (2,),
        6,
        block_size=3,
        causal=True,
        from_root=True,
        markov_rank=3,
        confidence=True,
        own_embedding=True,
        own_head=True,
    ),
    "path selector": BlockConfig(
        LAYERS, E, 2, TAPS, 6, block_size=4, markov_rank=5, markov="selector", candidates=3, conv_taps=2, conv_group=16
    ),
    "refiner": BlockConfig(
        OWN,
        E,
        2,
        TAPS,
        5,
        block_size=5,
        own_embedding=True,
        own_head=True,
        refiner_rank=3,
        refiner_size=6,
        refiner_passes=2,
    ),
}
SEEDS = {"from the root": 5, "refiner": 6}  # with these, rounds keep drafts and reject drafts
HEADS = {name: random_head(BlockHead, config, seed=SEEDS.get(name, 3), scale=0.2) for name, config in CONFIGS.items()}
HEADS["refiner"].refiner.second[...] *= 6  # with these, corrections and the token before the root change guesses
HEADS["refiner"].refiner.first[...] *= 6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@dataclasses.dataclass
class NumpyHead:
    """A head in numpy, one text and one place at a time.

    ``taps`` [len(taps), n, E] are those of the tokens before the root.
    """

    head: BlockHead

    def __post_init__(self):
        self.config, self.layers = self.head.config, self.head.config.layers
        own = lambda param, other: array(other if param is None else param)
        self.embed, self.output = own(self.head.embed, TARGET.embed), own(self.head.head, TARGET.head)

    def rotate(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """x [n, D] with rotary positions [n]."""
        D = self.layers.head_dim
        angle = positions[:, None] / self.layers.rope.theta ** (np.arange(0, D, 2) / D)
        a, b = x[:, : D // 2], x[:, D // 2 :]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)

    def attention(self, layer, read: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Attention of a block [N, E] to a context [n, E] and to itself."""
        c, n, N = self.layers, len(context), len(read)
        K, G, D, positions = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim, np.arange(n + N)
        qkv, mixed = array(layer.mixer.qkv).reshape(K, G + 2, D, -1), []
        for k in range(K):
            both = np.concatenate([context, read])
            keys = self.rotate(normed(both @ qkv[k, G].T, layer.mixer.k_norm, c.norm_eps), positions)
            for g in range(G):
                queries = self.rotate(normed(read @ qkv[k, g].T, layer.mixer.q_norm, c.norm_eps), positions[n:])
                for i, query in enumerate(queries):
                    last = n + i + 1 if self.config.causal else n + N
                    weights = np.exp(keys[:last] @ query / np.sqrt(D))
                    mixed.append(weights @ (both[:last] @ qkv[k, G + 1].T) / weights.sum())
        return np.stack(mixed).reshape(K * G, N, D).swapaxes(0, 1).reshape(N, -1) @ array(layer.mixer.out).T

    def convolved(self, conv, side: int, x: np.ndarray, read: np.ndarray) -> np.ndarray:
        """out[i, c] = sum over t of (base[t, c] + delta[i, t, g(c)]) x[i - t, c], channel by channel."""
        if conv is None:
            return x
        size, taps, (N, E) = self.config.conv_group, self.config.conv_taps, x.shape
        delta = (read @ array(conv.kernels).T).reshape(N, 2, taps, E // size)[:, side]
        base, out = array(conv.base)[side], np.zeros((N, E))
        for i in range(N):
            for t in range(min(taps, i + 1)):
                for c in range(E):
                    out[i, c] += (base[t, c] + delta[i, t, c // size]) * x[i - t, c]
        return out

    def hidden(self, taps: np.ndarray, root: int) -> np.ndarray:
        """Hidden states [N, E] of all places of the block."""
        c, eps = self.config, self.layers.norm_eps
        context = normed(np.concatenate(list(taps), 1) @ array(self.head.fc).T, self.head.hidden_norm, eps)
        x = self.embed[[root] + [c.mask_token] * (c.block_size - 1)]
        for layer in self.head.layers:
            read, conv = normed(x, layer.mixer_norm, eps), getattr(layer, "mixer_conv", None)
            found = self.attention(layer, self.convolved(conv, 0, read, read), context)
            x = x + self.convolved(conv, 1, found, read)
            read, conv = normed(x, layer.mlp_norm, eps), getattr(layer, "mlp_conv", None)
            gate, up = gate_and_up(self.convolved(conv, 0, read, read) @ array(layer.mlp.gate_up).T)
            x = x + self.convolved(conv, 1, gate * sigmoid(gate) * up @ array(layer.mlp.down).T, read)
        return normed(x, self.head.norm, eps)

    def logits(self, places: np.ndarray, before: list[int]) -> np.ndarray:
        """Logits [V] of place n - 1, from the first n ``places`` [n, E] of a block and the token
        before each.
        """
        logits = self.output @ places[-1]
        if not self.config.markov_rank:
            return logits
        r, memory = self.config.markov_rank, np.zeros(self.config.markov_rank)
        for place, token in zip(places, before, strict=True):
            code = array(self.head.markov.first)[token]
            if self.config.markov == "selector":
                code = code * (array(self.head.markov.gate) @ place)
                continue
            gate = lambda *read: array(self.head.markov.gate) @ np.concatenate(read) + array(self.head.markov.gate_bias)
            if self.config.markov == "gated":
                code = code * sigmoid(gate(place, code))
            if self.config.markov == "rnn":
                found = gate(memory, code, place)
                stays, code = sigmoid(found[:r]), np.tanh(found[2 * r :])
                memory = stays * memory + (1 - stays) * np.tanh(found[r : 2 * r])
        corrected = logits + array(self.head.markov.second) @ code
        if self.config.candidates:
            corrected[np.argsort(-logits)[self.config.candidates :]] = np.float32(LACKING)
        return corrected

    def refined(self, hidden: np.ndarray, before: list[int]) -> np.ndarray:
        """XPress's logits [N, V] of all places [N, E] of a block, from the token before each place."""
        refiner, xs, found = self.head.refiner, [], []
        get = lambda name: array(getattr(refiner, name))
        mean = sum(hidden) / len(hidden)
        for k, (place, token) in enumerate(zip(hidden, before, strict=True)):
            xs.append(get("join") @ np.concatenate([get("own") @ place, get("mean") @ mean, get("first")[token]]))
            x = xs[k] + sum(get("mix")[:, k, j] * xs[j] for j in range(k + 1))
            gate = get("gate") @ x
            x = x + get("down") @ (gate * sigmoid(gate) * (get("up") @ x))
            found.append(self.output @ place + get("second") @ x)
        return np.array(found)

    def jacobi(self, taps: np.ndarray, root: int, earlier: int, passes: int) -> list[int]:
        """The tokens after the root when each pass corrects the whole guess before it."""
        hidden = self.hidden(taps, root)
        guess = [root, *(self.output @ hidden[1:].T).argmax(0)]
        for _ in range(passes):
            guess = [root, *self.refined(hidden, [earlier, *guess[:-1]])[1:].argmax(1)]
        return [int(token) for token in guess[1:]]

    def sure(self, hidden: np.ndarray, before: int) -> float:
        if self.config.confidence_markov:
            hidden = np.concatenate([hidden, array(self.head.markov.first)[before]])
        return sigmoid(array(self.head.confidence)[0] @ hidden + array(self.head.confidence_bias)[0])

    def places(self, taps: np.ndarray, root: int, shift: int = 0) -> np.ndarray:
        """The hidden states that predict the first drafted token, the second, and so on."""
        return self.hidden(taps, root)[(0 if self.config.from_root else 1) + shift :]

    def chain(self, taps, root: int, length: int, confidence: float = 0.0, shift: int = 0) -> list[int]:
        """The likeliest token of each place, given the token before it where the head has a Markov
        correction.
        """
        drafted, places = [root], self.places(taps, root, shift)
        for i, place in enumerate(places[:length]):
            if confidence and self.sure(place, drafted[-1]) < confidence:
                break
            drafted.append(int(self.logits(places[: i + 1], drafted).argmax()))
        return drafted[1:]


@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_logits_and_confidence_equal_numpy(name):
    """One cache holds contexts of 0, 4 and 9 tokens; rows beyond a context are void."""
    head, config, rng = HEADS[name], CONFIGS[name], np.random.default_rng(0)
    lengths, roots, N = np.array([0, 9, 4]), [1, 2, 0], config.block_size
    taps, before = rng.normal(size=(len(config.taps), 3, 12, E)), rng.integers(0, V, (3, N))

    @jax.jit
    def read(head, taps, before):
        at = jnp.broadcast_to(jnp.arange(12), (3, 12))
        cache = KVCache(head.context(tuple(taps), at, jnp.float32), jnp.asarray(lengths, jnp.int32))
        tokens = jnp.full((3, N), config.mask_token).at[:, 0].set(jnp.array(roots))
        hidden = head(TARGET, tokens, cache.length[:, None] + jnp.arange(N), cache).hidden
        correct = head.refiner if config.refiner_rank else head.markov
        logits = head.logits(TARGET, hidden)
        return (
            hidden,
            logits if correct is None else head.corrected(logits, correct.codes(hidden, before)),
            head.sure(hidden, before) if config.confidence else hidden[..., 0],
        )

    hidden, logits, sure = read(head, jnp.asarray(taps, jnp.float32), jnp.asarray(before, jnp.int32))
    plain = NumpyHead(head)
    for b, (n, root) in enumerate(zip(lengths, roots)):
        wanted = plain.hidden(taps[:, b, :n], root)
        np.testing.assert_allclose(hidden[b], wanted, rtol=1e-4, atol=1e-5)
        refined = plain.refined(wanted, before[b]) if config.refiner_rank else None
        for i in range(N):
            own = plain.logits(wanted[: i + 1], before[b, : i + 1]) if refined is None else refined[i]
            np.testing.assert_allclose(logits[b, i], own, rtol=1e-4, atol=1e-5)
            if config.confidence:
                np.testing.assert_allclose(sure[b, i], plain.sure(wanted[i], before[b, i]), rtol=1e-4)


def each_round(name: str, drafter: BlockDrafter, **options):
    """For each round and unfinished row the text, the taps of all tokens before its root, those one
    layer lower, the trees, and the row's number. Greedy texts are checked on the way, and that
    rounds kept none and some.
    """
    kept, before = set(), PROMPTS
    for state, tree in rounds(TARGET, HEADS[name], drafter, ROUNDS, PROMPTS, **options):
        now = texts(state)
        found, choices = read_target(TARGET, now, (0, 1, 2))
        if not options:
            assert_greedy(PROMPTS, now, choices)
        kept |= {len(text) - len(old) - 1 for text, old in zip(now, before)}
        before = now
        for b in np.flatnonzero(~np.asarray(state.done)):
            text, taps = now[b], found[b]
            of = lambda layers: taps[list(layers), : len(text) - 1]
            yield text, of(drafter.taps), of(i - 1 for i in drafter.taps), tree, b
    assert {0, 1} <= kept


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("in place", dict(draft_confidence=0.4), marks=pytest.mark.slow),
        ("from the root", dict(draft_confidence=0.4)),
        pytest.param("path selector", {}, marks=pytest.mark.slow),
        pytest.param("recurrent", {}, marks=pytest.mark.slow),
    ],
)
def test_chains_equal_plain_python(name, options):
    """Numpy that reads the place beside, or the layer below, gives other chains."""
    drafter, plain = BlockDrafter(**options, head=CONFIGS[name]), NumpyHead(HEADS[name])
    drafted, shifted, lower, lengths = [], [], [], set()
    for text, taps, below, tree, b in each_round(name, drafter):
        say = partial(plain.chain, root=text[-1], length=drafter.depth, confidence=drafter.draft_confidence)
        wanted = say(taps)
        assert spell_paths(tree, b) == [tuple(wanted[:i]) for i in range(len(wanted) + 1)]
        drafted.append(wanted)
        shifted.append(say(taps, shift=-1 if not plain.config.from_root else 1))
        lower.append(say(below))
        lengths.add(len(wanted))
    assert drafted != shifted and drafted != lower
    assert max(lengths) == drafter.depth and (len(lengths) > 1) == bool(drafter.draft_confidence)


def test_refined_chains_equal_plain_python():
    """The head stops before its guess is settled; after as many passes as places, the guess is the
    greedy text of the corrected logits, from left to right.
    """
    drafter, plain, fewer, settled = BlockDrafter(3, head=CONFIGS["refiner"]), NumpyHead(HEADS["refiner"]), [], []
    beside = []
    for text, taps, _, tree, b in each_round("refiner", drafter):
        root, earlier = text[-1], text[max(len(text) - 2, 0)]
        jacobi = lambda passes: plain.jacobi(taps, root, earlier, passes)
        wanted = jacobi(2)
        assert spell_paths(tree, b) == [tuple(wanted[:i]) for i in range(4)]
        drafted, hidden = [earlier, root], plain.hidden(taps, root)
        for i in range(1, 5):
            before = (drafted + [0] * 4)[:5]
            drafted.append(int(plain.refined(hidden, before)[i].argmax()))
        assert jacobi(4) == drafted[2:] and wanted[:2] == drafted[2:4]
        fewer.append(wanted == jacobi(1))
        beside.append(wanted == plain.jacobi(taps, root, root, 2))
        settled.append(wanted == drafted[2:])
    assert not all(fewer) and not all(settled) and not all(beside)


@pytest.mark.parametrize("name", ["from the root", "path selector", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_q_of_drawn_chains_equals_numpy(name):
    """After temperature, for every drafted token given the tokens before it.

    A chain ends before a token of low confidence.
    """
    least = 0.4 if CONFIGS[name].confidence else 0
    drafter, plain, lengths = BlockDrafter(draft_confidence=least, head=CONFIGS[name]), NumpyHead(HEADS[name]), set()
    for text, taps, _, tree, b in each_round(name, drafter, temperature=1.3):
        places, drafted = plain.places(taps, text[-1]), [text[-1], *np.asarray(tree.tokens[b, 1:]).tolist()]
        sure = [not least or plain.sure(place, before) >= 0.4 for place, before in zip(places, drafted)]
        length = (sure + [False]).index(False)
        assert tree.valid[b].tolist() == [i <= length for i in range(drafter.depth + 1)]
        wanted = [np.exp(log_softmax(plain.logits(places[: i + 1], drafted[: i + 1]) / 1.3)) for i in range(length)]
        np.testing.assert_allclose(tree.q[b, :length], np.reshape(wanted, (length, V)), rtol=1e-3, atol=1e-6)
        assert not np.any(tree.q[b, length:])
        lengths.add(length)
    assert len(lengths) > 2 or not least


@pytest.mark.parametrize(
    ("depth", "nodes", "width"),
    [(4, 20, 3), pytest.param(3, 4, 2, marks=pytest.mark.slow), pytest.param(2, 30, 5, marks=pytest.mark.slow)],
)
def test_best_first_trees_equal_those_of_a_heap(depth, nodes, width):
    rng = np.random.default_rng(depth)
    logs = np.array(
        [
            [log_softmax(place) for place in row]
            for row in rng.normal(size=(20, depth, 8)) * rng.uniform(0.3, 5, (20, 1, 1))
        ]
    )
    tree = jax.jit(jax.vmap(partial(best_first, jnp.int32(1), nodes=nodes, width=width)))(
        jnp.asarray(logs, jnp.float32)
    )
    assert np.all(tree.parent[:, 1:] < np.arange(1, nodes + 1)) and tree.max_depth == depth and not tree.is_chain
    for b in range(20):
        found = spell_paths(tree, b)
        assert len(found) == len(set(found)) and set(found) == take_best_sequences(logs[b], nodes, width)


def test_trees_of_a_block_equal_those_of_a_heap():
    """A causal head reads three of its five places, as many as it drafts."""
    drafter, plain = BlockDrafter(3, tree_nodes=24, tree_top_k=4, head=CONFIGS["causal"]), NumpyHead(HEADS["causal"])
    for text, taps, _, tree, b in each_round("causal", drafter):
        logs = np.array([log_softmax(plain.logits([place], [0])) for place in plain.places(taps, text[-1])[:3]])
        assert set(spell_paths(tree, b)) == take_best_sequences(logs, 24, 4)


@pytest.mark.slow
def test_a_prompt_alone_gets_the_greedy_text():
    generator = Generator(
        language_model(TARGET), "block", Head(HEADS["in place"], CONFIGS["in place"], "head"), tree_nodes=16
    )
    for prompt in PROMPTS[:2]:
        result = generator(prompt, max_new_tokens=24, ignore_eos=True)
        rows = [prompt + result.token_ids] * len(PROMPTS)
        assert_greedy([prompt], rows, read_target(TARGET, rows, (0, 1, 2))[1])
        assert len(result.token_ids) == 24 and result.stats.accepted > 0


@pytest.mark.slow
def test_a_bfloat16_head_on_two_devices_leaves_the_text_greedy():
    """The mesh splits head and target; the oracle is a forward without a cache."""
    target, head = (on_mesh(module, make_mesh(1, 2)) for module in (TARGET, cast(HEADS["in place"], "bfloat16")))
    assert not head.layers[0].mixer.qkv[...].is_fully_replicated
    generator = Generator(language_model(target), "block", Head(head, head.config, "head"))
    results = generator(PROMPTS, max_new_tokens=24, ignore_eos=True)
    rows = [prompt + result.token_ids for prompt, result in zip(PROMPTS, results)]
    assert_greedy(PROMPTS, rows, read_target(TARGET, rows, (0, 1, 2))[1])
    assert {len(result.token_ids) for result in results} == {24} and sum(r.stats.accepted for r in results) > 0


@pytest.mark.slow
def test_the_loop_copies_neither_cache_nor_weights():
    layers = WIDE.replace(hidden_size=96, intermediate_size=160, num_layers=1, num_kv_heads=1, head_dim=48)
    config = BlockConfig(layers, WIDE.hidden_size, 2, (1, 2), 5, block_size=4, own_embedding=True, own_head=True)
    head = nnx.eval_shape(lambda: BlockHead(config, jax.random.key(0), jnp.bfloat16))
    program = Program(BlockDrafter(head=config), 4, draft=head, options={"xla_backend_optimization_level": 0})
    assert len(program.caches) == 2  # the target's and the context
    assert hlo.moved(program.text, program.caches | program.weights, MOVES) == [] and hlo.host_calls(program.text) == []


@pytest.mark.parametrize(
    ("options", "name", "named"),
    [
        (dict(num_speculative_tokens=4), "in place", "num_speculative_tokens is 4 and the head drafts 3"),
        (dict(num_speculative_tokens=0), "in place", "num_speculative_tokens must be"),
        (dict(draft_confidence=0.5), "causal", "draft_confidence needs a head"),
        (dict(draft_confidence=1.5), "in place", "draft_confidence must be"),
        (dict(tree_nodes=3), "in place", "tree_nodes must be 4 to 84"),
        (dict(tree_nodes=85), "in place", "tree_nodes must be 4 to 84"),
        (dict(tree_nodes=9, tree_top_k=1), "in place", "makes no tree"),
        (dict(tree_nodes=9, tree_top_k=V + 1), "in place", f"tree_top_k is {V + 1}"),
        (dict(tree_nodes=9), "from the root", "leave tree_nodes out"),
        (dict(tree_nodes=9), "refiner", "leave tree_nodes out"),
        (dict(tree_nodes=9, draft_confidence=0.5), "in place", "leave tree_nodes out"),
        (dict(rule="block"), "in place", "rule 'block'"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(options, name, named):
    with pytest.raises(RequestError) as error:
        Generator(language_model(TARGET), "block", Head(HEADS[name], CONFIGS[name], "head"), **options)
    assert named in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(layers=OWN), "40 wide and its target 32"),
        (dict(markov="lstm"), "'lstm'"),
        (dict(confidence_markov=True), "markov_rank is 0"),
        (dict(candidates=3), "candidates belong to the Markov correction 'selector'"),
        (dict(markov="selector", markov_rank=2), "candidates belong to the Markov correction 'selector'"),
        (dict(markov="selector", markov_rank=2, candidates=8), "a path selector with 8 candidates"),
        (dict(conv_taps=2, conv_group=5), "groups of 5 channels do not divide the width 32"),
        (dict(refiner_rank=2), "no Markov and no confidence head"),
    ],
)
def test_impossible_configurations_are_refused_in_one_line(changes, named):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(CONFIGS["in place"], **changes)
    assert named in str(error.value) and "\n" not in str(error.value)

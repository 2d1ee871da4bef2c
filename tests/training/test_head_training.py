"""Training of drafters: each loss against loops over positions in float64, written from the papers; resuming, meshes, faults, the command."""

import dataclasses
import errno
import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import byte_tokenizer, language_model, on_mesh, tiny_model

import specjax
from specjax import CheckpointError, NumericsError, RequestError
from specjax.checkpoints.heads import load_drafter
from specjax.cli.main import main
from specjax.models.attention import Seen, attend
from specjax.parallel import make_mesh
from specjax.training import head_losses, kinds, losses, shapes
from specjax.training.checkpoints import Checkpoints
from specjax.training.loop import fit
from specjax.training.optimizers import Optimizer
from specjax.training.recipe import read_recipe, recipe_of
from specjax.training.run import Text, cast, loss_of, train

V, S = 61, 9
WINDOW = np.random.default_rng(0).integers(0, V, (2, S + 1)).astype(np.int32)
KEY = jax.random.key(5)


@pytest.fixture(autouse=True)
def promotion():
    """optax mixes integers and floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


# Attention without a matrix of nodes by rows


def dense_of(seen: Seen, N: int, M: int) -> np.ndarray:
    """The matrix that ``seen`` stands for, entry by entry."""
    group = seen.inner.shape[0] if seen.inner is not None else 1
    calls = seen.inner.shape[1] // group if seen.inner is not None else 0
    first_rows, out = M - calls * N, np.zeros((2, N, M), bool)
    for b in range(2):
        for i in range(N):
            for j in range(first_rows):
                begin = 0 if seen.first is None else np.broadcast_to(seen.first, (2, N))[b, i]
                out[b, i, j] = begin <= j < np.broadcast_to(seen.limit, (2, N))[b, i]
            for call in range(calls):
                for j in range(N):
                    if i // group == j // group:
                        out[b, i, first_rows + call * N + j] = seen.inner[i % group, call * group + j % group]
    return out


LIMITS = np.sort(np.random.default_rng(1).integers(0, 150, (2, 50)), -1).repeat(3, 1)
SEEN = {
    "a window": (150, 150, Seen.causal(150).replace(first=jnp.arange(150)[None] - 6)),
    "chains of training-time test": (140, 420, Seen.causal(140).replace(inner=jnp.ones((1, 2), bool))),
    "blocks": (150, 290, Seen(jnp.asarray(LIMITS), inner=jnp.tril(jnp.ones((3, 3), bool)))),
}


@pytest.mark.parametrize("name", SEEN)
def test_attention_in_chunks_is_dense_attention(name):
    """Values and gradients, with more nodes than a chunk has."""
    N, M, seen = SEEN[name]
    keys = jax.random.split(jax.random.key(0), 4)
    q, wanted = (jax.random.normal(k, (2, N, 2, 2, 8)) for k in keys[:2])
    rows = tuple(jax.random.normal(k, (2, 2, M, 8)) for k in keys[2:])

    @jax.jit
    def both(q, rows, dense):
        def value(q, rows, mask):
            out = attend(q, None, None, rows, mask, None, None)
            return (out * wanted.reshape(out.shape)).sum(), out

        return [jax.value_and_grad(value, (0, 1), has_aux=True)(q, rows, mask) for mask in (seen, dense)]

    found, right = both(q, rows, jnp.asarray(dense_of(seen, N, M)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right)):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


# A layer, row by row


def array(param) -> np.ndarray:
    return np.asarray(param[...], np.float64)


def norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def turned(x, position, config):
    """Rotary position embedding of one head's vector."""
    half = config.head_dim // 2
    angle = position / config.rope.theta ** (np.arange(half) / half)
    a, b = x[:half], x[half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


class Row:
    """Query, key and value of what one row reads, for each head."""

    def __init__(self, layer, config, read, position):
        K, G, D = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim
        heads = (array(layer.qkv) @ read).reshape(K, G + 2, D)
        self.q = [[turned(heads[k, g], position, config) for g in range(G)] for k in range(K)]
        self.k = [turned(heads[k, G], position, config) for k in range(K)]
        self.v = [heads[k, G + 1] for k in range(K)]


def attention(layer, config, row: Row, seen: list) -> np.ndarray:
    """What attention adds, where ``row`` sees these rows."""
    out = []
    for k, queries in enumerate(row.q):
        for q in queries:
            weights = softmax(np.array([q @ other.k[k] for other in seen]) / np.sqrt(config.head_dim))
            out.append(sum(w * other.v[k] for w, other in zip(weights, seen)))
    return array(layer.out) @ np.concatenate(out)


def mlp(layer, config, x) -> np.ndarray:
    gate, up = np.split(array(layer.gate_up) @ norm(x, array(layer.mlp_norm), config.norm_eps), 2)
    return x + array(layer.down) @ (gate / (1 + np.exp(-gate)) * up)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def nll(logits, label):
    return -np.log(softmax(logits)[label])


def soft(p_logits, q_logits):
    return -(softmax(p_logits) * np.log(softmax(q_logits))).sum()


class Computed:
    """What a model computes of the windows, by its dense forward: taps, hidden states and logits, float64."""

    def __init__(self, model):
        mask = jnp.tril(jnp.ones((S + 1, S + 1), bool))
        positions = jnp.broadcast_to(jnp.arange(S + 1), WINDOW.shape)
        forward = jax.jit(lambda m: (o := m(jnp.asarray(WINDOW), positions, mask, taps=(0, 1)), m.logits(o.hidden)))
        out, logits = forward(model)
        self.taps = [np.asarray(tap, np.float64) for tap in out.taps]
        self.hidden, self.logits = np.asarray(out.hidden, np.float64), np.asarray(logits, np.float64)
        self.embed, self.output = array(model.embed), array(model.head)


@pytest.fixture(scope="module")
def target():
    return language_model(tiny_model(0, num_layers=1), "target")


@pytest.fixture(scope="module")
def out(target):
    return Computed(target.model)


STREAM = np.random.default_rng(3).integers(0, V, 400) // 2


def made(target, kind: str, **options):
    """A random head of a kind, its weights scaled up so that what it says is far from uniform."""
    head = kinds.KINDS[kind].shape(**options).make(target, STREAM, jax.random.key(1))
    graph, params, rest = nnx.split(head, nnx.Param, ...)
    noise = lambda x: x + 0.12 * jax.random.normal(jax.random.key(x.size), x.shape)
    return nnx.merge(graph, jax.tree.map(noise, params), rest)


def value_of(loss, head, target) -> float:
    return float(jax.jit(loss)(head, jnp.asarray(WINDOW), KEY, target.model))


@pytest.mark.parametrize("kind, teacher, options", [("medusa", 0.0, {}), ("hydra", 0.3, {}), ("hydra", 1.0, {"prefix": True})])
def test_medusa_and_hydra(target, out, kind, teacher, options):
    """With a prefix layer row i of the heads reads what that makes of the hidden states up to i."""
    head = made(target, kind, num_heads=3, **options)
    right, count, read = 0.0, S - 3, out.hidden
    if options:
        config, (layer,) = head.config.layers, head.layers
        normed = lambda x: norm(x, array(layer.attention_norm), config.norm_eps)
        rows = [[Row(layer, config, normed(x), i) for i, x in enumerate(states)] for states in out.hidden]
        seen = lambda b, i: attention(layer, config, rows[b][i], rows[b][: i + 1])
        read = [[mlp(layer, config, x + seen(b, i)) for i, x in enumerate(states[:S])] for b, states in enumerate(out.hidden)]
        read = [[norm(x, array(head.norm), config.norm_eps) for x in states] for states in read]
    for k, part in enumerate(head.heads):
        for b, window in enumerate(WINDOW):
            for i in range(count):
                x = kept = read[b][i]
                if kind == "hydra":
                    x = np.concatenate([x, *(out.embed[window[i + 1 + j]] for j in range(k + 1))])
                    kept = array(part.blocks[0].residual) @ x + array(part.blocks[0].residual_bias)
                z = array(part.blocks[0].linear) @ x + array(part.blocks[0].linear_bias)
                logits = array(part.head) @ (kept + z / (1 + np.exp(-z)))
                logits = logits + (array(part.head_bias) if kind == "hydra" else 0)
                label, said = window[i + k + 2], out.logits[b, i + k + 1]
                right += 0.8**k * ((1 - teacher) * nll(logits, label) + teacher * soft(said, logits)) / (2 * count)
    assert value_of(head_losses.MedusaLoss(teacher=teacher), head, target) == pytest.approx(right, rel=1e-4)


def test_eagle(target, out):
    """Row i reads feature i and token i + 1; it should be feature i + 1."""
    head = made(target, "eagle")
    config, layer = head.config.layers, head.layers[0]
    noise = (np.asarray(jax.random.uniform(KEY, (2, S, 32)), np.float64) - 0.5) * 0.2 * 512 / S
    distance = entropy = 0.0
    for b, window in enumerate(WINDOW):
        rows, xs = [], []
        for i in range(S):
            x = array(head.fc) @ np.concatenate([out.embed[window[i + 1]], out.hidden[b, i] + noise[b, i]]) + array(head.fc_bias)
            rows.append(Row(layer, config, x, i))  # the first layer norms nothing
            xs.append(x)
            feature = mlp(layer, config, x + attention(layer, config, rows[i], rows))
            far = np.abs(feature - out.hidden[b, i + 1])
            distance += np.where(far < 1, far**2 / 2, far - 0.5).mean() / (2 * S)
            entropy += soft(out.logits[b, i + 1], out.output @ feature) / (2 * S)
    assert value_of(head_losses.EagleLoss(), head, target) == pytest.approx(distance + 0.1 * entropy, rel=1e-4)


def chained(layers_of, steps, count, row_of, finish):
    """Training-time test: hidden states [steps][count]. In each step row i sees the first step's rows up to i, and its own of later steps."""
    first, chains, hidden = [], [[] for _ in range(count)], []
    for s in range(steps):
        states = []
        for i in range(count):
            row, x = row_of(s, i, hidden[-1][i] if s else None)
            if s == 0:
                first.append(row)
                seen = first[: i + 1]
            else:
                chains[i].append(row)
                seen = first[: i + 1] + chains[i]
            states.append(finish(x, row, seen))
        hidden.append(states)
    return hidden


@pytest.mark.parametrize("parallel", [False, True])
def test_eagle3(target, out, parallel):
    """P-EAGLE reads its mask in all steps but the first."""
    steps, head = 3, made(target, "eagle3", draft_vocab_size=20, taps=(0, 1), parallel=parallel)
    config, layer = head.config.layers, head.layers[0]
    known = [int(d + offset) for d, offset in enumerate(head.draft_to_target[...])]
    assert known == sorted(sorted(range(V), key=lambda t: (-(STREAM == t).sum(), t))[:20])
    count, right = S + 1 - steps, 0.0
    found = []
    for b, window in enumerate(WINDOW):

        def row_of(s, i, hidden):
            feature, token = array(head.fc) @ np.concatenate([tap[b, i] for tap in out.taps]) if s == 0 else hidden, window[i + 1 + s]
            if parallel and s:
                feature, token = array(head.fc) @ array(head.mask_hidden)[0, 0], head.config.mask_token
            embedded = norm(out.embed[token], array(layer.attention_norm), config.norm_eps)
            read = np.concatenate([embedded, norm(feature, array(layer.hidden_norm), config.norm_eps)])
            return Row(layer, config, read, i + s), feature

        finish = lambda x, row, seen: mlp(layer, config, x + attention(layer, config, row, seen))
        found.append(chained(layer, steps, count, row_of, finish))
    for s in range(steps):
        values = []
        for b in range(2):
            for i in range(count):
                wanted = out.logits[b, i + 1 + s]
                if wanted.argmax() in known:
                    values.append(soft(wanted[known], array(head.head) @ norm(found[b][s][i], array(head.norm), config.norm_eps)))
        assert 0 < len(values) < 2 * count
        right += 0.8**s * np.mean(values)
    assert value_of(head_losses.Eagle3Loss(steps), head, target) == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize("modules, weights", [(1, (1, 0.6, 0.36)), (2, (1, 1, 0.6)), (3, (1, 1, 1))])
def test_mtp(target, out, modules, weights):
    """Each module in its own step sees its own rows alone; the last goes on as in training-time test."""
    steps, head = 3, made(target, "mtp", modules=modules)
    config, eps, count, right = head.config.layers, head.config.layers.norm_eps, S - 3, 0.0
    for b, window in enumerate(WINDOW):

        def run(module, features, s, steps):
            """Steps s, s + 1, ... of a module that begins with ``features`` [count]."""
            layer = module.layers[0]

            def row_of(again, i, hidden):
                embedded = norm(out.embed[window[i + 1 + s + again]], array(module.embedding_norm), eps)
                feature = norm(features[i] if again == 0 else hidden, array(module.hidden_norm), eps)
                x = array(module.join) @ np.concatenate([embedded, feature])
                return Row(layer, config, norm(x, array(layer.attention_norm), eps), i + again), x

            finish = lambda x, row, seen: mlp(layer, config, x + attention(layer, config, row, seen))
            return chained(layer, steps, count, row_of, finish)

        hidden = [out.hidden[b]]
        for k, module in enumerate(head.modules):
            hidden += run(module, hidden[-1], k, 1 if k + 1 < modules else steps - k)
        for s in range(steps):
            module = head.modules[min(s, modules - 1)]
            for i in range(count):
                logits = out.output @ norm(hidden[s + 1][i], array(module.norm), eps)
                right += 0.3 * weights[s] / sum(weights) * nll(logits, window[i + 2 + s]) / (2 * count)
    assert value_of(head_losses.MtpLoss(steps), head, target) == pytest.approx(right, rel=1e-4)


BLOCKS = {
    "dflash": (dict(), head_losses.BlockLoss(anchors=3, gamma=2.0)),
    "jetspec and dspark": (
        dict(causal=True, from_root=True, markov_rank=4, confidence=True),
        head_losses.BlockLoss(anchors=3, gamma=0.0, ce=0.1, forward_kl=0.5, tv=0.9, confidence=0.7),
    ),
}
BLOCKS["a recurrent Markov head"] = (BLOCKS["jetspec and dspark"][0] | dict(markov="rnn"), BLOCKS["jetspec and dspark"][1])


@pytest.mark.parametrize("name", BLOCKS)
def test_block(target, out, name):
    options, loss = BLOCKS[name]
    head = made(target, "block", num_layers=1, block_size=4, taps=(0, 1), **options)
    config, layer = head.config.layers, head.layers[0]
    eps, drafts, mask = config.norm_eps, head.config.drafts, head.config.mask_token
    anchors = np.asarray(head_losses.places(KEY, 2, S + 1 - drafts, 3))
    assert all(len(set(row)) == 3 and 0 <= row.min() and row.max() + drafts <= S for row in anchors)
    top = bottom = 0.0
    for b, window in enumerate(WINDOW):
        context = []
        for i in range(S):
            fused = norm(array(head.fc) @ np.concatenate([tap[b, i] for tap in out.taps]), array(head.hidden_norm), eps)
            context.append(Row(layer, config, fused, i))
        for a in anchors[b]:
            xs = [out.embed[window[a] if j == 0 else mask] for j in range(4)]
            rows = [Row(layer, config, norm(x, array(layer.attention_norm), eps), a + j) for j, x in enumerate(xs)]
            memory = np.zeros(4)
            for j in range(4):
                k = j + 1 if options.get("from_root") else j  # it says the k-th token after the anchor
                if k == 0:
                    continue
                seen = context[:a] + (rows[: j + 1] if options.get("causal") else rows)
                hidden = norm(mlp(layer, config, xs[j] + attention(layer, config, rows[j], seen)), array(head.norm), eps)
                q, p = out.output @ hidden, out.logits[b, a + k - 1]
                value = nll(q, window[a + k])
                if options:
                    before = code = array(head.markov.first)[window[a + k - 1]]
                    if "markov" in options:
                        gate = array(head.markov.gate) @ np.concatenate([memory, before, hidden]) + array(head.markov.gate_bias)
                        stays, becomes, code = 1 / (1 + np.exp(-gate[:4])), np.tanh(gate[4:8]), np.tanh(gate[8:])
                        memory = stays * memory + (1 - stays) * becomes
                    q = q + array(head.markov.second) @ code
                    sure = 1 / (1 + np.exp(-(array(head.confidence) @ np.concatenate([hidden, before]) + array(head.confidence_bias))[0]))
                    far = np.abs(softmax(p) - softmax(q)).sum() / 2
                    value = 0.1 * nll(q, window[a + k]) + 0.5 * (softmax(p) * np.log(softmax(p) / softmax(q))).sum() + 0.9 * far
                    value -= 0.7 * ((1 - far) * np.log(sure) + far * np.log(1 - sure))
                weight = np.exp(-(k - 1) / loss.gamma) if loss.gamma else 1.0
                top, bottom = top + weight * value, bottom + weight
    assert value_of(loss, head, target) == pytest.approx(top / bottom, rel=1e-4)


DIVERGENCES = {
    "ce": lambda p, q, label: -np.log(q[label]),
    "forward_kl": lambda p, q, label: sum(p * np.log(p / q)),
    "reverse_kl": lambda p, q, label: sum(q * np.log(q / p)),
    "tv": lambda p, q, label: 1 - sum(np.minimum(p, q)),
    "lk_alpha": lambda p, q, label: -np.log(sum(np.minimum(p, q))),
    "lk_lambda": lambda p, q, label: (w := 0.9 * np.exp(-2 * (a := sum(np.minimum(p, q))))) * sum(p * np.log(p / q)) + (1 - w) * (1 - a),
}


def test_draft_losses(target, out):
    draft = tiny_model(1, num_layers=1)
    p, q = out.logits, Computed(draft).logits

    @jax.jit
    def found(draft, target):
        named = (head_losses.DraftLoss(**{"forward_kl": 0.0} | {name: 2.0}, lk_scale=0.9, lk_fall=2.0) for name in DIVERGENCES)
        return [loss(draft, jnp.asarray(WINDOW), KEY, target) for loss in named]

    for value, divergence in zip(found(draft, target.model), DIVERGENCES.values()):
        rows = [divergence(softmax(p[b, i]), softmax(q[b, i]), WINDOW[b, i + 1]) for b in range(2) for i in range(S)]
        assert float(value) == pytest.approx(2 * np.mean(rows), rel=1e-4)


def test_pieces_give_what_the_whole_gives(target, monkeypatch):
    draft, whole = tiny_model(1, num_layers=1), head_losses.DraftLoss()
    gradient = lambda: jax.jit(jax.value_and_grad(lambda d: whole(d, jnp.asarray(WINDOW), KEY, target.model)))(draft)
    right = gradient()
    monkeypatch.setattr(losses, "_SCORES", 2 * V * 4)  # four rows at a time, of nine
    for a, b in zip(jax.tree.leaves(gradient()), jax.tree.leaves(right)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


# Runs


@pytest.fixture
def saved(monkeypatch):
    """Heads that were saved, instead of files."""
    found = {}
    monkeypatch.setattr("specjax.checkpoints.heads.save_head", lambda head, directory: found.update({str(directory): head}), raising=False)
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    letters = [letter for letter in byte_tokenizer().get_vocab() if len(letter) == 1]
    (folder / "a.txt").write_text("".join(rng.choice(letters, 900)))
    return folder


RUN = dict(kind="mtp", steps=4, batch=8, length=12, every=2, head={}, loss={"steps": 2}, optimizer={"name": "adamw", "warmup": 1})


class Stopped(Exception):
    pass


def run(target, text, output, measure=lambda module: 1.5, **changes):
    return train(recipe_of(RUN | changes, "test"), target, [text], output, measure=measure)


def records(output) -> list[dict]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def small():
    return language_model(tiny_model(0, num_layers=1, max_position_embeddings=64), "small")


@pytest.fixture(scope="module")
def whole(small, text, tmp_path_factory):
    """A run without interruption: its directory and its head."""
    output = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr("specjax.checkpoints.heads.save_head", lambda head, directory: None, raising=False)
        return output, run(small, text, output)


def same(a, b) -> bool:
    return all((x == y).all() for x, y in zip(jax.tree.leaves(nnx.state(a.module)), jax.tree.leaves(nnx.state(b.module))))


def test_a_run_logs_each_step_and_saves_its_head(whole, small, saved):
    output, head = whole
    log = records(output)
    assert [record["step"] for record in log] == [1, 2, 3, 4]
    assert [record.get("acceptance") for record in log] == [None, 1.5, None, 1.5]
    assert all(record["loss"] > 0 and record["tokens_per_second"] > 0 for record in log)
    assert head.config.kind == "mtp"
    begun = shapes.MtpShape().make(small, STREAM, jax.random.key(0))
    assert not np.array_equal(begun.modules[0].join[...], head.module.modules[0].join[...])


def test_an_interrupted_run_goes_on_bit_for_bit(whole, small, text, tmp_path, saved):
    """Killed after the first checkpoint and in the middle of a line; a half-written checkpoint and a damaged newest one are passed over."""
    stop = iter([1.5])
    with pytest.raises(StopIteration):
        run(small, text, tmp_path, measure=lambda module: next(stop))
    checkpoints = tmp_path / "checkpoints"
    assert sorted(int(p.name) for p in checkpoints.iterdir()) == [2, 4]
    for file in (p for p in (checkpoints / "4").rglob("*") if p.is_file() and p.stat().st_size > 200):
        file.write_bytes(file.read_bytes()[:100])
    shutil.copytree(checkpoints / "2", checkpoints / "3.orbax-checkpoint-tmp-7")
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 4, "lo')
    head = run(small, text, tmp_path)
    assert same(head, whole[1])
    assert [(r["step"], r["loss"]) for r in records(tmp_path)] == [(r["step"], r["loss"]) for r in records(whole[0])]


@pytest.mark.parametrize(("data", "model"), [(4, 2), (8, 1)])
def test_a_mesh_gives_the_same_losses_and_parameters(whole, small, text, tmp_path, saved, data, model):
    spread = language_model(on_mesh(small.model, make_mesh(data, model)), "small")
    head = run(spread, text, tmp_path, mesh={"data": data, "model": model})
    for a, b in zip(records(tmp_path), records(whole[0])):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5) and a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-4)
    for a, b in zip(*(jax.tree.leaves(nnx.state(h.module)) for h in (head, whole[1]))):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_full_disk_leaves_the_checkpoint_before(whole, small, text, tmp_path, saved, monkeypatch):
    from orbax.checkpoint import v1 as ocp

    shutil.copytree(whole[0], tmp_path / "run")

    def full(self, *args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ocp.training.Checkpointer, "save", full)
    with pytest.raises(CheckpointError, match="step 6 cannot be written .*No space.*step 4 is whole"):
        run(small, text, tmp_path / "run", steps=6)
    assert "4" in [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]


@pytest.fixture
def begun(whole, tmp_path):
    """A copy of the run with checkpoints of steps 2 and 4."""
    return Path(shutil.copytree(whole[0], tmp_path / "run"))


def all_files(directory) -> dict:
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != ".lock"}


def test_a_lost_recipe_costs_no_checkpoint(begun, small, text, saved):
    (begun / "recipe.json").unlink()
    before = all_files(begun)
    with pytest.raises(RequestError, match="holds checkpoints and no recipe.json that says of what; name another --output"):
        run(small, text, begun, head={"modules": 2})
    assert all_files(begun) == before


def test_checkpoints_of_another_shape_stay(begun):
    before = all_files(begun / "checkpoints")
    with pytest.raises(CheckpointError, match="step 4 is of another training .*; name another --output") as error:
        fit(tiny_model(num_layers=1), losses.next_token, lambda step: WINDOW, Optimizer(name="adamw").rule(6), 6, begun)
    assert "\n" not in str(error.value)
    assert all_files(begun / "checkpoints") == before


def flip_a_byte(checkpoint) -> None:
    largest = max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_a_flipped_byte_is_found(begun, whole, small, text, saved, capsys):
    flip_a_byte(begun / "checkpoints" / "4")
    damaged = all_files(begun / "checkpoints" / "4")
    assert same(run(small, text, begun), whole[1])  # from step 2
    assert "checkpoint 4 is damaged and left out" in capsys.readouterr().err
    assert all_files(begun / "damaged" / "4") == damaged
    for step in ("2", "4"):
        flip_a_byte(begun / "checkpoints" / step)
    with pytest.raises(CheckpointError, match="no checkpoint is whole .*; name another --output, or remove"):
        run(small, text, begun)
    assert {p.name for p in (begun / "checkpoints").iterdir()} == {"2", "4"}


def test_two_runs_do_not_share_a_directory(begun, small, text, saved):
    with (begun / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another training writes there; wait for its end or name another --output"):
            run(small, text, begun)
    run(small, text, begun)


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_heads_without_layers_are_saved_in_the_dtype_of_the_target(small, text, tmp_path, kind):
    target = dataclasses.replace(small, model=cast(small.model, "bfloat16"))
    short = dict(kind=kind, loss={}, head={"num_heads": 2}, steps=1, batch=2)
    head = run(target, text, tmp_path, **short)
    assert head.config.dtype == "bfloat16" and load_drafter(tmp_path, target).config == head.config


STOPPED = """
import os, signal, sys
from specjax.cli import main
from specjax.checkpoints.heads import load_drafter
from specjax.training import checkpoints
if sys.argv[1] == "between":
    from specjax.training import run
    run.Text.name = lambda self, step: ""
    batch = run.Text.batch
    run.Text.batch = lambda self, step: os.kill(os.getpid(), signal.SIGINT) if step == 3 else batch(self, step)
else:
    write = checkpoints._checksums
    checkpoints._checksums = lambda path: (os.kill(os.getpid(), signal.SIGINT), write(path))[1]
sys.exit(main(sys.argv[2:]))
"""


FULL = """
import resource, signal, sys
from specjax.cli import main
from specjax.training import checkpoints
save = checkpoints.Checkpoints.save

def limited(self, step, arrays):
    if step == 4:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    save(self, step, arrays)

checkpoints.Checkpoints.save = limited
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_takes_no_more_is_one_line(small, text, tmp_path):
    """Of the threads that write, none adds a trace of its own."""
    done = in_a_process(FULL, small, text, tmp_path)
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("step", "[transformers]"))]
    assert len(lines) == 1 and "step 4 cannot be written (File too large); that of step 2 is whole; free some space" in lines[0], (
        done.stderr
    )
    with Checkpoints(tmp_path / "out") as found:
        assert [c.step for c in found.orbax.checkpoints] == [2] and not found._damage(2)


def in_a_process(script, small, text, tmp_path, *first):
    specjax.save(small, tmp_path / "model")
    (tmp_path / "r.toml").write_text("kind = 'mtp'\nsteps = 4\nbatch = 4\nlength = 12\nevery = 2\nprompts = 0\n[loss]\nsteps = 2\n")
    arguments = "--recipe", tmp_path / "r.toml", "--model", tmp_path / "model", "--data", text, "--output", tmp_path / "out"
    command = [sys.executable, "-c", script, *first, "train", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(("when", "left"), [("between", 2), ("in a checkpoint", 2)])
def test_ctrl_c_is_one_line_and_leaves_a_good_checkpoint(small, text, tmp_path, when, left):
    done = in_a_process(STOPPED, small, text, tmp_path, when)
    lines = [line for line in done.stderr.splitlines() if line.startswith("specjax")]
    assert done.returncode == 130, done.stderr
    assert len(lines) == 1 and "interrupted; the checkpoints in" in lines[0]
    assert "Traceback" not in done.stderr
    with Checkpoints(tmp_path / "out") as found:
        assert [c.step for c in found.orbax.checkpoints] == [left] and not found._damage(left)


def test_a_loss_that_is_not_finite_keeps_the_checkpoint_before(tmp_path):
    model = tiny_model(num_layers=1, sharpness=1.0)
    loss = lambda model, batch: (batch * 1.0).sum() * model.norm[...].sum()
    batches = lambda step: np.full((2, 3), np.nan if step == 3 else 1.0, np.float32)
    with pytest.raises(NumericsError, match=r"step 4, of windows 6 to 8; the last checkpoint .* is good"):
        fit(
            model,
            loss,
            batches,
            Optimizer(warmup=1).rule(6),
            6,
            tmp_path,
            every=2,
            name=lambda step: f", of windows {2 * step} to {2 * step + 2}",
        )
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_another_recipe_is_not_mixed_in(whole, small, text, saved):
    with pytest.raises(RequestError, match="holds a run with seed 0, not 1; name another --output"):
        run(small, text, whole[0], seed=1)


def test_in_bfloat16_gradients_reach_every_parameter(small):
    heads = {"eagle3": {"draft_vocab_size": 30, "taps": [1], "from_target": True}, "block": {"num_layers": 1, "block_size": 4}}
    for kind, shape in heads.items():
        recipe = recipe_of(
            {"kind": kind, "dtype": "bfloat16", "length": S, "head": shape, "loss": {"steps": 2} if kind == "eagle3" else {}}, kind
        )
        module = kinds.KINDS[kind].shape.make(recipe.head, small, STREAM, jax.random.key(0))
        if kind == "eagle3":
            assert (module.layers[0].down[...] == small.model.layers[0].down[...]).all()
        graph, params, rest = nnx.split(module, nnx.Param, ...)
        loss = loss_of(recipe)
        batch = jnp.asarray(WINDOW), jnp.uint32(0)
        found = jax.jit(jax.grad(lambda params, target: loss(nnx.merge(graph, params, rest), batch, target)))(params, small.model)
        for path, leaf in jax.tree_util.tree_leaves_with_path(found):
            assert leaf.dtype == jnp.float32
            assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, path


def test_a_draft_is_measured_and_saved(small, text, tmp_path):
    """The whole of it with the engine: acceptance on held-out prompts, and a checkpoint that loads."""
    specjax.save(small, tmp_path / "start")
    table = dict(kind="draft", head={"start": str(tmp_path / "start")}, optimizer={"rate": 1e-6, "name": "adamw"}, prompts=2)
    train(recipe_of(table | dict(steps=2, every=1, batch=2, length=12), "test"), small, [text], tmp_path / "run")
    assert [record["acceptance"] > 4 for record in records(tmp_path / "run")] == [True, True]  # it is the target, nearly
    draft = specjax.load(tmp_path / "run")
    assert draft.tokenizer.get_vocab() == small.tokenizer.get_vocab()


class Parrot:
    """Stands for a Generator: continues each prompt by its last token, and remembers whose parameters it had."""

    used = []

    def __init__(self, target, method):
        self.target = target

    def __call__(self, prompts, max_new_tokens, **options):
        self.used.append(self.target.model)
        return [SimpleNamespace(prompt_token_ids=p, token_ids=[p[-1]] * max_new_tokens) for p in prompts]


@pytest.mark.parametrize("who", ["target", "draft"])
def test_text_on_policy_is_written_by_the_newest_model(small, who, monkeypatch):
    monkeypatch.setattr("specjax.training.on_policy.Generator", Parrot)
    monkeypatch.setattr(Parrot, "used", [])
    recipe = recipe_of(dict(kind="draft", on_policy=who, batch=2, length=12, every=4, steps=8), "test")
    text = Text(recipe, STREAM.astype(np.int32), small, tiny_model(1))
    for step, module in ((0, tiny_model(2)), (4, tiny_model(3))):
        text.renew(step, module)
        assert Parrot.used[-1] is (small.model if who == "target" else module)
        windows, _ = text.batch(step)
        assert windows.shape == (2, 13)
        assert (windows[:, 3:] == windows[:, 2:3]).all()  # three tokens of the data, the rest written
    text.renew(8, None)
    assert len(Parrot.used) == 2  # nothing is written for after the end


# Recipes, data and the command


def test_recipes_that_are_shipped_can_be_read():
    from pathlib import Path

    files = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
    assert len(files) >= 7
    for file in files:
        recipe = read_recipe(file)
        assert recipe.kind in file.stem
        assert recipe.model
    for kind in kinds.KINDS:
        assert read_recipe(kind).kind == kind


WRONG = {
    "kind = 'egale3'": "did you mean eagle3",
    "kind = 'eagle3'\nstep = 5": "'step' is unknown; did you mean steps",
    "kind = 'eagle3'\n[loss]\ndecai = 5": "[loss]: key 'decai' is unknown; did you mean decay",
    "kind = 'medusa'\n[head]\nnum_heads = 'two'": "num_heads = 'two' is not a whole number",
    "kind = 'block'\n[head]\nmarkov = 'deep'": "markov 'deep' is unknown",
    "kind = 'medusa'\nlength = 4": "length 4 is too short",
    "kind = 'mtp'\n[head]\nmodules = 0": "modules 0 is too few",
    "kind = 'mtp'\n[head]\nmodules = 4": "steps = 3 leaves out some of the 4 modules",
    "kind = 'mtp'\n[head]\nmodules = 2\nnum_layers = 2": "no checkpoint holds 2 modules of 2 layers",
    "kind = 'medusa'\nsteps = 0": "steps 0 is too small",
    "kind = 'medusa'\nseed = -1": "seed -1 is too small; 0 is the least",
    "kind = 'medusa'\nseed = 4294967296": "seed 4294967296 is too large; 4294967295 is the most",
    "kind = 'medusa'\nprompts = -1": "prompts -1 is too small; 0 is the least",
    "kind = 'eagle'\n[head]\nnum_layers = 0": "[head] num_layers 0 is too small; 1 is the least",
    "kind = 'draft'\n[head]\nnum_layers = 1000": "[head] num_layers 1000 is too large; 256 is the most",
    "kind = 'draft'\n[head]\nhidden_size = -8": "[head] hidden_size -8 is too small; 0 is the least",
    "kind = 'medusa'\n[head]\nnum_heads = 0": "[head] num_heads 0 is too small; 1 is the least",
    "kind = 'block'\n[head]\nmarkov_rank = -1": "[head] markov_rank -1 is too small; 0 is the least",
    "kind = 'block'\n[loss]\nanchors = 0": "[loss] anchors 0 is too small; 1 is the least",
    "kind = 'medusa'\n[loss]\nteacher = 1.5": "[loss] teacher 1.5 is too large; 1.0 is the most",
    "kind = 'medusa'\n[loss]\ndecay = nan": "[loss] decay nan is too small; 0 is the least",
    "kind = 'medusa'\n[optimizer]\nrate = 20.0": "[optimizer] rate 20.0 is too large; 10.0 is the most",
    "kind = 'medusa'\n[mesh]\nmodel = 0": "[mesh] model 0 is too small; 1 is the least",
    "kind = 'medusa'\non_policy = 'draft'": "on_policy 'draft' needs",
    "kind = 'medusa'\nbatch = 3\n[mesh]\ndata = 2": "cannot be split",
    "kind = 'medusa'\n[optimizer]\nname = 'sgd'": "optimizer 'sgd' is unknown",
    "kind = ": "not readable as TOML",
}


def test_bad_recipes_get_one_line(tmp_path):
    for toml, message in WRONG.items():
        (tmp_path / "r.toml").write_text(toml)
        with pytest.raises(RequestError) as error:
            read_recipe(tmp_path / "r.toml")
        assert message in str(error.value), toml
        assert "\n" not in str(error.value)


def test_the_command_exits_with_2_and_one_line(tmp_path, capsys, small, text):
    specjax.save(small, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("ABCDE" * 10)
    (tmp_path / "taps.toml").write_text("kind = 'eagle3'\nlength = 12\n[head]\ntaps = [0, 7]\n")
    (tmp_path / "vocabulary.toml").write_text("kind = 'eagle3'\nlength = 12\n[head]\ndraft_vocab_size = 99\n")
    (tmp_path / "mesh.toml").write_text("kind = 'mtp'\nbatch = 64\nlength = 12\n[mesh]\ndata = 64\n")
    recipe = lambda name, *more: ("--recipe", name, "--length", 12, *more)
    cases = {
        "neither a kind": recipe("eagel3"),
        "no such file or directory": recipe("mtp", "--data", tmp_path / "missing"),
        "no file there": recipe("mtp", "--data", tmp_path / "empty"),
        "no text there": recipe("mtp", "--data", tmp_path / "blank.txt"),
        "windows of 30 need 61": recipe("mtp", "--data", tmp_path / "blank.txt", tmp_path / "short.txt", "--length", 30, "--prompts", 0),
        "context is 64": ("--recipe", "mtp", "--data", text),
        "taps 0, 7 do not fit": ("--recipe", tmp_path / "taps.toml", "--data", text, "--prompts", 0),
        "draft_vocab_size 99 does not fit": ("--recipe", tmp_path / "vocabulary.toml", "--data", text, "--prompts", 0),
        "needs 64 devices": ("--recipe", tmp_path / "mesh.toml", "--data", text),
    }
    for message, arguments in cases.items():
        code = main(["train", "--model", str(tmp_path / "model"), "--output", str(tmp_path / "out"), *map(str, arguments)])
        error = capsys.readouterr().err
        assert code == 2, message
        assert error.count("\n") == 1 and error.startswith("specjax: error:"), error
        assert message in error, error

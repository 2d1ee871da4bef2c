"""Times a training step of an EAGLE-3 head beside the same step written in PyTorch.

    python scripts/benchmarks/training_beside_torch.py [--rounds 6]

The target has the shape of SmolLM2-135M-Instruct and random weights. Both sides start from the same
files, and their first losses must agree. Steps alternate in one process. Writes
training_beside_torch_cpu.json and .md.
"""

import os
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import torch.nn.functional as F
import transformers
from flax import nnx
from page import Result, arguments, measured, quartiles, section, timed
from safetensors.torch import load_file

from specjax import LanguageModel, load, save, save_head
from specjax.checkpoints.config import from_hf
from specjax.heads import Head
from specjax.models.decoder import Decoder
from specjax.tools.evaluate.report import markdown_table
from specjax.training.kinds import KINDS
from specjax.training.loop import make_step
from specjax.training.recipe import make_recipe
from specjax.training.run import cast_target, make_loss

BATCH, LENGTH, STEPS, DRAFTED = 8, 256, 3, 4096
RATE = 1e-4
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True, "max_position_embeddings": 8192,
    "hidden_act": "silu",
}  # fmt: skip
TITLE = "A training step of an EAGLE-3 head beside PyTorch"
QUESTION = "Is a head trained here as fast as with PyTorch on the same machine?"
TEXT = f"""A batch has {BATCH} windows of {LENGTH} tokens; the head has one layer, {STEPS} steps of training-time test
and {DRAFTED:,} draft tokens; AdamW, float32 head. The forward pass of the target is in bfloat16 on both sides where the
processor multiplies it fast, else in float32. Kept features: the target's features come from disk, as in all epochs
after the first; PyTorch computes them. Share of the peak: operations of the matrix products in a step, over those of a
large float32 product in a second.
"""
FOLLOWS = "- A training that reads its texts several times keeps the features on disk: key `features` of the recipe."


class TorchHead(torch.nn.Module):
    """EAGLE-3 (2503.01840, section 3.2) with the tensors of a published checkpoint."""

    def __init__(self, tensors: dict):
        super().__init__()
        self.known = tensors.pop("d2t") + torch.arange(DRAFTED)
        del tensors["t2d"]
        names = {name: name.removeprefix("midlayer.").removesuffix(".weight").replace(".", "_") for name in tensors}
        self.w = torch.nn.ParameterDict({names[name]: torch.nn.Parameter(x.float()) for name, x in tensors.items()})

    def forward(self, embedded, taps, p, counts):
        """The mean loss; ``embedded`` [B, S, E] of tokens 1 on, ``p`` [B, S, Vd], ``counts`` [B, S]."""
        w, N = self.w, LENGTH + 1 - STEPS
        x = F.linear(torch.cat(taps, -1), w["fc"])[:, :N]
        keys, values, total = [], [], 0.0
        causal = torch.full((N, N), -torch.inf).triu(1)
        for s in range(STEPS):
            normed = [norm(embedded[:, s : s + N], w["input_layernorm"]), norm(x, w["hidden_norm"])]
            read = torch.cat(normed, -1)
            q, k, v = (F.linear(read, w[f"self_attn_{n}_proj"]).unflatten(-1, (-1, 64)).transpose(1, 2) for n in "qkv")
            q, k = (rotate(part, s + torch.arange(N)) for part in (q, k))
            keys.append(k.repeat_interleave(3, 1))
            values.append(v.repeat_interleave(3, 1))
            scores = q @ keys[0].transpose(-1, -2) / 8 + causal
            own = [(q * key).sum(-1, keepdim=True) / 8 for key in keys[1:]]
            weights = torch.cat([scores, *own], -1).softmax(-1)
            out = weights[..., :N] @ values[0]
            for i, value in enumerate(values[1:]):
                out = out + weights[..., N + i, None] * value
            x = x + F.linear(out.transpose(1, 2).flatten(2), w["self_attn_o_proj"])
            y = norm(x, w["post_attention_layernorm"])
            gated = F.silu(F.linear(y, w["mlp_gate_proj"])) * F.linear(y, w["mlp_up_proj"])
            x = x + F.linear(gated, w["mlp_down_proj"])
            q_logits = F.linear(norm(x, w["norm"]), w["lm_head"])
            loss = -(p[:, s : s + N] * q_logits.log_softmax(-1)).sum(-1)
            weight = counts[:, s : s + N]
            total = total + 0.8**s * (loss * weight).sum() / weight.sum()
        return total


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def rotate(x, positions):
    angles = positions[:, None] / 1e5 ** (torch.arange(32) / 32)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :32], x[..., 32:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Torch:
    """The step in PyTorch."""

    def __init__(self, model: Path, head: Path, taps: tuple[int, ...], dtype: str):
        self.target = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.head = TorchHead(load_file(head / "model.safetensors"))
        self.taps = taps
        self.optimizer = torch.optim.AdamW(self.head.parameters(), RATE, (0.9, 0.95), weight_decay=0.0)

    def step(self, windows: np.ndarray) -> float:
        windows = torch.tensor(windows).long()
        with torch.no_grad():
            out = self.target.model(windows, output_hidden_states=True)
            logits = self.target.lm_head(out.last_hidden_state[:, 1:]).float()
            drafted = torch.zeros(SHAPE["vocab_size"], dtype=torch.bool)
            drafted[self.head.known] = True
            counts = drafted[logits.argmax(-1)].float()
            p = logits[..., self.head.known].softmax(-1)
            embedded = self.target.get_input_embeddings()(windows[:, 1:]).float()
            taps = [out.hidden_states[i].float() for i in self.taps]
        loss = self.head(embedded, taps, p, counts)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


class Jax:
    """The step of ``specjax train``, with or without kept features."""

    def __init__(self, target: LanguageModel, head, recipe):
        graph, self.params, self.rest = nnx.split(head, nnx.Param, ...)
        self.params = jax.tree.map(jnp.copy, self.params)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(RATE, 0.9, 0.95, weight_decay=0.0))
        self.state = optimizer.init(self.params)
        self.update = make_step(graph, make_loss(recipe), optimizer)
        self.extra = (cast_target(target.model),)

    def step(self, windows) -> float:
        batch = windows, np.ones((BATCH, LENGTH + 2), bool), np.uint32(0)
        self.params, self.state, loss, _ = self.update(self.params, self.state, self.rest, batch, self.extra)
        return float(loss)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="timed steps of each side, after two untimed ones")
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), args.rounds)
    result = Result(f"training_beside_torch_{jax.default_backend()}")
    result.save(report)
    write_page(result)


def measure(folder: Path, rounds: int) -> dict:
    # 1. The same weights for both sides.
    config = from_hf(SHAPE | {"dtype": "float32"})
    embedded = load("tiny-python")
    target = LanguageModel(Decoder(config, jax.random.key(0)), config, embedded.tokenizer, "target")
    recipe = make_recipe(
        dict(kind="eagle3", head=dict(draft_vocab_size=DRAFTED), loss=dict(steps=STEPS), batch=BATCH, length=LENGTH),
        "benchmark",
    )
    rng = np.random.default_rng(0)
    stream = rng.integers(0, config.vocab_size, 100_000).astype(np.int32)
    head = KINDS["eagle3"].shape.make(recipe.head, target, stream, jax.random.key(1))
    save(target, folder / "target")
    save_head(Head(head, head.config, "head"), folder / "head")
    # 2. The steps.
    dtype = str(jax.tree.leaves(cast_target(target_in(target, "bfloat16")))[0].dtype)
    target = LanguageModel(target_in(target, dtype), config, embedded.tokenizer, "target")
    ours, kept = Jax(target, head, recipe), Jax(target, head, recipe)
    theirs = Torch(folder / "target", folder / "head", head.config.taps, dtype)
    windows = [rng.integers(0, config.vocab_size, (BATCH, LENGTH + 1)).astype(np.int32) for _ in range(rounds + 2)]
    features = keep(target, head, windows)
    losses, seconds = [], {"torch": [], "specjax": [], "specjax, kept features": []}
    for i, window in enumerate(windows):
        calls = {
            "torch": lambda: theirs.step(window),
            "specjax": lambda: ours.step(window),
            "specjax, kept features": lambda: kept.step(features[i]),
        }
        names = list(calls)
        for name in names[i % 3 :] + names[: i % 3]:
            began = time.perf_counter()
            loss = calls[name]()
            if i >= 2:
                seconds[name].append(time.perf_counter() - began)
            if i == 0:
                losses.append((name, loss))
    first = dict(losses)
    assert max(first.values()) / min(first.values()) < 1.01, first
    conditions = measured(note="the shape of SmolLM2-135M-Instruct; the speed does not depend on the weights")
    conditions |= {"torch": torch.__version__, "dtype": dtype}
    peak = (
        float(np.median([1 / timed(product, *operands) for product, operands in [large_product()] * 5])) * 2 * 2048**3
    )
    return {"conditions": conditions, "losses": first, "seconds": seconds, "peak": peak, "operations": operations()}


def target_in(target: LanguageModel, dtype: str) -> Decoder:
    graph, state = nnx.split(target.model)
    return nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype), state))


def keep(target: LanguageModel, head, windows) -> list:
    """The windows with the target's features, as ``training.kept_features`` reads them."""
    from specjax.heads.training_forward import read_target
    from specjax.training.online.feature_windows import RecordedWindow

    model = cast_target(target.model)
    read = jax.jit(lambda model, window: read_target(model, window, head.config.taps))
    outs = [read(model, window) for window in windows]
    return [RecordedWindow(w, np.stack(out.taps, 2), np.asarray(out.hidden)) for w, out in zip(windows, outs)]


def large_product():
    a = jnp.ones((2048, 2048))
    return jax.jit(jnp.matmul).lower(a, a).compile(), (a, a)


def operations() -> dict[str, float]:
    """Operations of the products in a step: two a weight forward, four backward."""
    E, M, V = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["vocab_size"]
    kv = E // 3
    layer = 2 * E * E + 2 * E * kv + 3 * E * M
    head = 2 * E * (E + 2 * kv) + E * E + 3 * E * M + E * DRAFTED
    tokens = BATCH * LENGTH
    once = 2 * tokens * SHAPE["num_hidden_layers"] * layer
    each = tokens * (2 * V * E + 6 * (STEPS * head + 3 * E * E))
    return {"torch": once + each, "specjax": once + each, "specjax, kept features": each}


def write_page(result: Result) -> None:
    report = result.read()
    theirs = np.array(report["seconds"]["torch"])
    rows = []
    for name, seconds in report["seconds"].items():
        speed = BATCH * LENGTH / np.array(seconds)
        share = report["operations"][name] / np.median(seconds) / report["peak"]
        rows.append([name, quartiles(speed, ".0f"), quartiles(theirs / seconds), f"{100 * share:.0f} %"])
    head = ["side", "tokens a second", "over PyTorch", "share of the peak"]
    of = report["conditions"]
    versions = f"torch {of['torch']}; target in {of['dtype']}; peak {report['peak'] / 1e9:.0f} GFLOPS.\n"
    text = f"{TEXT}\n{versions}\n{markdown_table(head, rows)}"
    result.write(TITLE, QUESTION, [section(of, text)], FOLLOWS)


if __name__ == "__main__":
    main()

"""Compares specjax with the speculators package: checkpoints and forwards of every type of head.

    python scripts/golden/check_speculators.py --python OTHER/bin/python

OTHER is an environment with ``pip install speculators``, which brings PyTorch. specjax runs in the
present environment. The package writes tiny heads of every type with random weights, and the
outputs of their forwards. specjax reads the heads and must compute the same outputs. The builders
of the tests must make the same fields and tensors. Then specjax writes the heads, and the package
reads them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

E, V, L, KNOWN, S, ANCHOR, BLOCK = 32, 61, 6, 20, 20, 9, 8
SHAPE = dict(
    vocab_size=V, hidden_size=E, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=5e5,
)  # fmt: skip
BUILDERS = {
    "eagle3": "speculators", "peagle": "speculators-peagle", "mtp": "speculators-mtp", "dflash": "speculators-dflash",
    "dflash-one-window": "speculators-dflash, one window", "dflash-windows": "speculators-dflash, windows",
    **{f"dspark-{kind}": f"speculators-dspark, {kind}" for kind in ("vanilla", "gated", "rnn")},
    "dflash2": "speculators-dflash2", "xpress": "speculators-xpress",
}  # fmt: skip
"""The builder of the tests with the same fields and tensors, for each head of the package."""


def write_with_package(directory: Path) -> None:
    """Runs in the other environment: writes the heads, the target's tables, and outputs."""
    import torch
    from speculators.model import SpeculatorModel
    from speculators.models.dflash import core as dflash
    from transformers import LlamaConfig, Qwen3Config

    torch.manual_seed(0)
    tokens, tables = torch.arange(S + 2) * 7 % V, {name: torch.randn(V, E) for name in ("embed", "head")}
    # A forward of the package begins blocks at random places. Here one block begins at ANCHOR.
    dflash.select_anchors = lambda mask, count, size: (torch.tensor([ANCHOR]), torch.tensor([True]))
    np.savez(directory / "target.npz", tokens=tokens, **tables)
    shapes = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    for name, (kind, family, layers, options, shape) in heads_of_the_package().items():
        model_class = next(
            c for c in registered(SpeculatorModel) if c.config_class.__name__.lower().startswith(f"{kind}spec")
        )
        config_class = model_class.config_class
        inner = shapes[family](**SHAPE, num_hidden_layers=layers, **shape)
        inner._attn_implementation = "eager"
        model = model_class(config_class(transformer_layer_config=inner, speculators_config=algorithm(kind), **options))
        fill(model)
        if kind == "mtp":
            del model.verifier_lm_head  # as after load_verifier_weights
        model.save_pretrained(directory / name)
        if kind not in ("eagle3", "peagle"):  # The files of these two hold embeddings and output matrix.
            model.embed_tokens.weight.data.copy_(tables["embed"])
            if model.lm_head.weight.shape[0] == V:
                model.lm_head.weight.data.copy_(tables["head"])
        np.savez(directory / f"{name}.npz", **forward(model.eval(), kind, tokens))


def heads_of_the_package() -> dict:
    """The heads by name: type, family and number of layers, options of type and of layers."""
    eagle = dict(eagle_aux_hidden_state_layer_ids=[1, 2, 4], draft_vocab_size=KNOWN)
    block = dict(aux_hidden_state_layer_ids=[2, 4], mask_token_id=60, block_size=BLOCK)
    whole, part = block | dict(draft_vocab_size=V), block | dict(draft_vocab_size=KNOWN)
    markov = lambda kind: part | dict(markov_rank=4, markov_head_type=kind)

    def windows(*types: str) -> dict:
        # Windows end at the root in the package, and at each place in specjax. A window as long as
        # the text is the same for both.
        layer_types = [f"{t}_attention" for t in types]
        return dict(use_sliding_window=True, sliding_window=64, layer_types=layer_types)

    return {
        "eagle3": ("eagle3", "llama", 1, eagle | dict(fc_norm=True, norm_before_residual=True), {}),
        "peagle": ("peagle", "llama", 1, eagle | dict(mask_token_id=60), {}),
        "mtp": ("mtp", "qwen3", L, {}, {}),
        "dflash": ("dflash", "qwen3", 2, whole, {}),
        "dflash-one-window": ("dflash", "qwen3", 2, whole, windows("sliding", "full")),
        "dflash-windows": ("dflash", "qwen3", 2, part, windows("sliding", "sliding")),
        **{f"dspark-{kind}": ("dspark", "qwen3", 2, markov(kind), {}) for kind in ("vanilla", "gated", "rnn")},
        "dflash2": ("dflash2", "qwen3", 2, whole | dict(selector_rank=4, selector_top_k=5), {}),
        "xpress": ("xpress", "qwen3", 2, part | dict(xpress_rank=4), {}),
    }


def registered(base) -> list[type]:
    """The model classes of the package."""
    from speculators.models import dflash, dflash2, dspark, eagle3, mtp, peagle, xpress  # noqa: F401 - to register

    found = [base]
    for cls in found:
        found += cls.__subclasses__()
    return found[1:]


def algorithm(kind: str):
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    methods = [GreedyTokenProposalConfig(speculative_tokens=1)]
    verifier = VerifierConfig(name_or_path=None, architectures=[])
    return SpeculatorsConfig(
        algorithm=kind, proposal_methods=methods, default_proposal_method="greedy", verifier=verifier
    )


def fill(model) -> None:
    """Fills a model with random parameters, and its draft vocabulary, if it has one."""
    import torch

    for name, parameter in model.named_parameters():
        centre = 1.0 if "norm" in name else 0.0
        parameter.data.copy_(torch.randn(parameter.shape) * 0.3 + centre)
    if model.d2t is not None:
        known = torch.randperm(V)[:KNOWN].sort().values
        model.d2t.copy_(known - torch.arange(KNOWN))
        model.t2d.copy_(torch.zeros(V, dtype=torch.bool).index_fill(0, known, True))


def forward(model, kind: str, tokens) -> dict:
    """The inputs and the outputs of one forward: logits [N, Vd], and DSpark's confidence [N]."""
    import torch

    count = 1 if kind == "mtp" else 2 if kind in ("dflash", "dspark", "dflash2", "xpress") else 3
    taps, found = torch.randn(1, S, count * E), {}
    model.lm_head.register_forward_hook(lambda module, inputs, output: found.update(logits=output[0].detach()))
    documents = torch.zeros(1, S, dtype=torch.long)
    with torch.no_grad():
        if kind in ("eagle3", "peagle"):  # The first step of P-EAGLE is that of EAGLE-3.
            parent = next(c for c in type(model).__mro__ if c.__name__ == "Eagle3DraftModel")
            parent.forward(model, taps, tokens[None, 1 : S + 1], documents, ttt_steps=1)
        elif kind == "mtp":
            model(tokens[None], torch.nn.functional.pad(taps, (0, 0, 0, 2)))
        else:
            ones, last = torch.ones(1, S), torch.zeros(1, S, E)
            batch = (taps, tokens[None, :S], ones, last, documents)
            hidden, logits, *_ = model._backbone_forward(*batch, max_anchors=1)
            found |= {"hidden": hidden[0], "logits": logits[0]}
            before = tokens[None, torch.arange(BLOCK) % S]
            if kind == "dflash2":
                full = (
                    logits
                    + model.candidate_selector.context(hidden, before) @ model.candidate_selector.successor_codebook.T
                )
                found["corrected"] = full[0]
                tokens_of, scores = model.candidate_selector.select(logits, hidden, before)
                found |= {"candidates": tokens_of[0].sort(-1).values, "scores": scores.sort(-1).values[0]}
            if kind == "xpress":
                found["corrected"] = (logits + model.refiner_head.block_bias(before, hidden))[0]
            if kind == "dspark":
                found["corrected"] = (
                    logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
                )[0]
                read = torch.cat([hidden, model.markov_head.prev_embeddings(before)], -1)
                found["confidence"] = torch.sigmoid(model.confidence_head(read))[0]
    return {"taps": taps[0].numpy(), **{name: x.numpy() for name, x in found.items()}}


def read_with_package(directory: Path) -> None:
    """Runs in the other environment: reads specjax's heads and compares tensors with the files."""
    import torch
    from safetensors.torch import load_file
    from speculators.model import SpeculatorModel

    for model_class in registered(SpeculatorModel):
        model_class.load_verifier_weights = lambda self: None  # There is no target here.
    for path in sorted(p for p in directory.iterdir() if p.is_dir()):
        model, info = SpeculatorModel.from_pretrained(str(path)), load_file(path / "model.safetensors")
        state = model.state_dict()
        assert info.keys() <= state.keys(), (path.name, info.keys() - state.keys())
        assert all(torch.equal(state[name].to(x.dtype), x) for name, x in info.items()), path.name
        theirs = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
        assert state.keys() - info.keys() <= theirs, (path.name, state.keys() - info.keys())
        print(f"{path.name}: the package reads the head that specjax wrote")


def compare(directory: Path) -> None:
    """Reads the package's heads, compares forwards and builders, and writes them to ``written``."""
    import jax
    import jax.numpy as jnp

    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root), str(root / "tests"), str(root / "tests/checkpoints")]
    from safetensors.numpy import load_file
    from support.head_cases import MADE
    from support.published_heads import DEEP

    from specjax import load_drafter, save_head

    tables = np.load(directory / "target.npz")
    target, tokens = DEEP.model, jnp.asarray(tables["tokens"], jnp.int32)[None]
    target.embed[...], target.head[...] = jnp.asarray(tables["embed"]), jnp.asarray(tables["head"])
    for name in heads_of_the_package():
        head = load_drafter(directory / name, DEEP)
        want, module = np.load(directory / f"{name}.npz"), head.module
        taps = tuple(jnp.split(jnp.asarray(want["taps"])[None], len(head.config.taps), -1))
        positions, causal = jnp.arange(S)[None], jnp.tril(jnp.ones((S, S), bool))
        if head.config.kind == "block":
            found = block_outputs(module, target, tokens, taps)
        else:
            out = module.modules[0](target, tokens[:, 1 : S + 1], module.fuse(target, taps), positions, causal)
            found = {"logits": module.modules[0].logits(target, out.hidden)[0]}
        for key in found:
            ours, theirs = np.asarray(found[key]), want[key]
            if key in ("logits", "corrected") and ours.shape[-1] != theirs.shape[-1]:
                ours = ours[:, np.arange(KNOWN) + np.asarray(module.draft_to_target[...])]
            ours = ours[: len(theirs)]
            gap = np.abs(ours - theirs).max() / np.abs(theirs).max()
            assert gap < 2e-5, (name, key, gap)
        print(f"{name}: {', '.join(found)} as the package computes them")
        check_builder(
            MADE[BUILDERS[name]],
            json.loads((directory / name / "config.json").read_text()),
            load_file(directory / name / "model.safetensors"),
        )
        save_head(head, directory / "written" / name)
    jax.clear_caches()


def block_outputs(module, target, tokens, taps) -> dict:
    """The outputs of a block at ANCHOR. Its context is the tokens before."""
    import jax
    import jax.numpy as jnp

    config = module.config
    rows = module.context(tuple(tap[:, :ANCHOR] for tap in taps), jnp.arange(ANCHOR)[None], jnp.float32)
    places = ANCHOR + jnp.arange(BLOCK)[None]
    block = jnp.full((1, BLOCK), config.mask_token, jnp.int32).at[0, 0].set(tokens[0, ANCHOR])
    from specjax.core.cache import KVCache

    out = module(target, block, places, KVCache(rows, jnp.array([ANCHOR])))
    found = {"hidden": out.hidden[0], "logits": module.logits(target, out.hidden)[0]}
    correct = module.refiner if config.refiner_rank else module.markov
    if correct is not None:
        code = correct.codes(out.hidden, tokens[:, jnp.arange(BLOCK) % S])
        found["corrected"] = module.logits(target, out.hidden, code)[0]
    if config.candidates:
        best = jax.lax.top_k(module.corrected(found["logits"], code[0]), config.candidates)
        found |= {"candidates": jnp.sort(best[1]), "scores": jnp.sort(best[0])}
    if config.confidence:
        found["confidence"] = module.sure(out.hidden, tokens[:, jnp.arange(BLOCK) % S])[0]
    return found


def check_builder(made, raw: dict, tensors: dict) -> None:
    """Asserts that a builder of the tests makes the fields and tensors of the package."""
    mine, own = made()
    optional = {
        "auto_map", "architectures", "speculators_version", "torch_dtype", "embed_requires_grad",
        "transformers_version", "tie_word_embeddings", "dtype", "target_hidden_size", "norm_before_fc", "fc_norm",
        "norm_output",
    }  # fmt: skip
    assert raw.keys() - mine.keys() <= optional, raw.keys() - mine.keys()
    assert mine.keys() - raw.keys() <= optional, mine.keys() - raw.keys()
    assert own.keys() == tensors.keys(), own.keys() ^ tensors.keys()
    assert all(own[name].shape == tensors[name].shape for name in own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter of an environment with speculators")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        return write_with_package(args.write)
    if args.read:
        return read_with_package(args.read)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([args.python, __file__, "--write", directory], check=True)
        compare(Path(directory))
        subprocess.run([args.python, __file__, "--read", f"{directory}/written"], check=True)


if __name__ == "__main__":
    main()

"""Rebuilds the embedded pair in specjax/checkpoints/zoo: the target, then the draft. The tokenizer stays.

    python scripts/zoo/zoo_corpus.py --work CORPUS
    python scripts/zoo/train_zoo.py --work DIR --corpus CORPUS

It takes about seven hours on two quiet CPU cores, and minutes on a GPU. The draft is trained on text
first, and then distilled from the target. At last it learns the texts that the target writes
greedily; a quarter of the tokens is text as before. The result is deterministic for given tokens,
machine and --seed. An interrupted run continues from its last checkpoint in DIR. --last-stage takes
the pair of the zoo, and trains the last stage of the draft alone.

The rate stays high until the last quarter of --target-steps. To end a run early, resume it with
fewer steps: the rate then falls from its present value.

On Linux, large pages make it a tenth faster:

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8000000000
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from transformers import AutoTokenizer
from zoo_corpus import END, MANIFEST, TOKENIZER, TOKENS

from specjax import Decoder, Generator, LanguageModel, ModelConfig, load, save
from specjax.training import data, losses
from specjax.training.loop import BatchSource, fit
from specjax.training.on_policy import Writer
from specjax.training.optimizers import Optimizer
from specjax.training.run import cast

ZOO = Path(__file__).resolve().parents[2] / "specjax" / "checkpoints" / "zoo"
DECAY = 0.25
"""The fraction of the steps in which the rate falls and windows are long."""
PIECE = 1024
"""The number of tokens that are computed together: as many as fit into a CPU's caches."""
COMMON = dict(
    family="llama",
    vocab_size=4096,
    max_position_embeddings=2048,
    norm_eps=1e-5,
    tie_embeddings=True,
    bos_token_id=0,
    eos_token_ids=(0,),
)
WRITTEN = 192
"""The number of tokens in a window that the target writes; a quarter of them are a beginning of the text."""
TOGETHER = 160
"""The number of windows that the target writes together."""
SAVED = 10 * TOGETHER
"""The number of windows that the target writes between two savings."""
TARGET = ModelConfig(
    hidden_size=384, intermediate_size=1024, num_layers=8, num_heads=6, num_kv_heads=2, head_dim=64, **COMMON
)
DRAFT = ModelConfig(
    hidden_size=128, intermediate_size=384, num_layers=2, num_heads=4, num_kv_heads=1, head_dim=32, **COMMON
)

CARD = """# {name}

{what} It belongs to the embedded pair of specjax. With the pair every method
runs, and can be measured, without network and without a GPU. It is a toy: single lines are plausible
Python, but whole programs are not.

| | |
|---|---|
| architecture | Llama, {layers} layers of width {width}, {parameters:.2f} M parameters, bfloat16, embeddings tied |
| data | source of the standard library of Python {python}, {repeats} times, and of {packages} packages under permissive licences (`scripts/zoo/zoo_corpus.txt`); {tokens} tokens, tests, tables and copies left out |
| held out | every module of the standard library whose path has a checksum divisible by twenty ({held} tokens), and copies of them |
| tokenizer | byte-level BPE of 4096 tokens, trained on the standard library |
| training | {training} |
| windows | {short} tokens, {length} in the last {decay:.0%} of the steps; the text degrades beyond them |
| held-out loss | {loss:.3f} nats a token ({bits:.3f} bits a byte), in windows of {length} |
{more}| rebuild | `{command}` |
| licence | the weights: Apache-2.0; the text they were trained on: PSF licence, and each package's own (MIT, BSD, Apache-2.0 or the like) |
"""


def main():
    args = parse_arguments()
    corpus = json.loads((args.corpus / MANIFEST).read_text())
    tokens = np.load(args.corpus / TOKENS).astype(np.int32)
    mixture = data.Mixture.join([data.Stream(tokens, np.ones(tokens.size, bool))])
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    held_texts = data.read_texts(data.standard_library(held_out=True))
    held = data.token_stream([data.Document(text) for text in held_texts], tokenizer, END).tokens
    bytes_per_token = sum(len(text.encode()) for text in held_texts) / held.size
    starts = np.linspace(0, held.size - args.length - 1, 24).astype(int)
    windows = np.stack([held[start : start + args.length + 1] for start in starts])
    evaluate = jax.jit(losses.next_token)

    def held_out_loss(model):
        return float(np.mean([evaluate(model, jnp.asarray(part)) for part in np.split(windows, 6)]))

    def cut(step, steps, windows):
        """Windows of the step; they are short at first, because attention is slow on a CPU."""
        short = step < int(steps * (1 - DECAY))
        count, length = (2 * windows, args.length // 2) if short else (windows, args.length)
        return mixture.cut(args.seed, step * count, count, length)[0]

    def train(name, loss, batches, steps, rate, model, extra=()):
        in_halves = lambda model, batch, *extra: loss(cast(model, "bfloat16"), batch, *extra)
        report = lambda step, model: {"held_out": held_out_loss(model)}
        optimizer = Optimizer(rate=rate, decay=DECAY).make(steps)
        fewest = min(len(part) for step in (0, steps) for part in jax.tree.leaves(batches(step)))
        pieces = max(1, min(args.batch * args.length // PIECE, fewest))
        run = args.work / name
        return fit(
            model, in_halves, BatchSource(batches, pieces=pieces), optimizer, steps, run, extra, report, args.every
        )

    def train_on_text(name, loss, steps, rate, model, extra=()):
        return train(name, loss, lambda step: cut(step, steps, args.batch), steps, rate, model, extra)

    new = lambda config: nnx.jit(lambda: Decoder(config, jax.random.key(args.seed)))()
    if args.last_stage:
        target, draft = (load(name, dtype="float32").model for name in ("tiny-python", "tiny-python-draft"))
    else:
        target = train_on_text("target", losses.next_token, args.target_steps, args.target_rate, new(TARGET))
        if args.target_only:
            return
        draft = train_on_text("draft", losses.next_token, args.draft_steps, args.draft_rate, new(DRAFT))
        teacher = (cast(target, "bfloat16"),)
        rate = args.draft_rate / 2
        draft = train_on_text("distilled", losses.distillation, args.distill_steps, rate, draft, teacher)

    written = write(LanguageModel(cast(target, "bfloat16"), TARGET, tokenizer, "tiny-python"), mixture, args)

    def greedy_and_text(step):
        rows = data.choose_rows(len(written), args.seed, step, 2 * args.batch)
        return written[rows], cut(step, args.greedy_steps, args.batch // 4)

    rate, extra = args.greedy_rate, (cast(target, "bfloat16"),)
    draft = train("greedy", greedy_and_text_loss, greedy_and_text, args.greedy_steps, rate, draft, extra)
    diverge = jax.jit(losses.distillation)
    divergence = float(np.mean([diverge(draft, jnp.asarray(part), target) for part in np.split(windows, 6)]))
    batch = f"{args.batch * args.length} tokens a step, Muon and Adam"
    command = (
        "python scripts/zoo/zoo_corpus.py --work CORPUS; python scripts/zoo/train_zoo.py --work DIR --corpus CORPUS "
    )
    command += f"--seed {args.seed} --target-steps {args.target_steps} "
    command += f"--draft-steps {args.draft_steps} --distill-steps {args.distill_steps} "
    command += f"--greedy-steps {args.greedy_steps} --written {args.written}"
    library, *packages = corpus["packages"]
    both = dict(python=library["version"], repeats=corpus["library_repeats"], packages=len(packages))
    both |= dict(tokens=tokens.size, held=held.size, length=args.length, short=args.length // 2, decay=DECAY)
    both |= dict(command=command)
    of_target = dict(
        name="tiny-python",
        what="A small language model of Python source.",
        training=f"{args.target_steps} steps, {batch}",
        more="",
    )
    of_draft = dict(
        name="tiny-python-draft",
        what="The draft of `tiny-python`, wide and shallow.",
        training=f"{args.draft_steps} steps of plain training, "
        f"then {args.distill_steps} of forward KL to the target, {batch}; "
        f"then {args.greedy_steps} of cross-entropy with {args.written} windows of {WRITTEN} tokens that the target "
        f"writes greedily after a beginning of {WRITTEN // 4}, plus forward KL on text, three to one in tokens",
        more=f"| divergence | {divergence:.3f} nats a token from the target's distribution, on held-out text |\n",
    )
    for model, text in ((target, of_target), (draft, of_draft))[args.last_stage :]:
        loss = held_out_loss(model)
        text |= dict(loss=loss, bits=loss / np.log(2) / bytes_per_token)
        export(model, tokenizer, text["name"], CARD, text | both)


def write(target: LanguageModel, mixture: data.Mixture, args: argparse.Namespace) -> np.ndarray:
    """Windows int32 [--written, WRITTEN + 1]: beginnings of the text, which the target continues greedily."""
    path = args.work / "written.npy"
    windows = np.load(path) if path.exists() else np.empty((0, WRITTEN + 1), np.uint16)
    writer = Writer(Generator(target, "none"), mixture, WRITTEN, temperature=0.0, rows=TOGETHER)
    while len(windows) < args.written:
        new, _ = writer(SAVED, args.seed + len(windows) // SAVED)
        windows = np.concatenate([windows, new.astype(np.uint16)])
        np.save(path, windows)
        print(f"{len(windows)} windows written", file=sys.stderr)
    return windows[: args.written].astype(np.int32)


def greedy_and_text_loss(draft: Decoder, batch: tuple[jax.Array, jax.Array], target: Decoder) -> jax.Array:
    """The cross-entropy with the tokens that the target has written, plus the forward KL on text.

    The first alone makes drafts of greedy decoding better, and those of sampling worse.
    """
    written, text = batch
    begin = WRITTEN // 4
    q = draft.logits(losses.forward(draft, written[:, :-1]).hidden[:, begin - 1 :])
    greedy = optax.softmax_cross_entropy_with_integer_labels(q, written[:, begin:]).mean()
    return greedy + losses.distillation(draft, text, target)


def export(model: Decoder, tokenizer, name: str, card: str, text: dict) -> None:
    """Writes the model in bfloat16, its tokenizer and its card to the zoo."""
    graph, params = nnx.split(model)
    halved = nnx.merge(graph, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))
    save(LanguageModel(halved, model.config, tokenizer, name), ZOO / name)
    count = sum(x.size for x in jax.tree.leaves(params)) / 1e6
    filled = card.format(layers=model.config.num_layers, width=model.config.hidden_size, parameters=count, **text)
    (ZOO / name / "README.md").write_text(filled)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory of checkpoints")
    parser.add_argument("--corpus", type=Path, required=True, help="directory that zoo_corpus.py wrote")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16, help="windows per step; twice as many while they are short")
    parser.add_argument("--length", type=int, default=512, help="tokens per window; half as many at first")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--target-steps", type=int, default=3400)
    parser.add_argument("--target-rate", type=float, default=3e-3)
    parser.add_argument("--target-only", action="store_true", help="train the target and leave the zoo as it is")
    parser.add_argument("--draft-steps", type=int, default=600)
    parser.add_argument("--distill-steps", type=int, default=800)
    parser.add_argument("--draft-rate", type=float, default=5e-3)
    parser.add_argument("--written", type=int, default=16000, help="windows that the target writes for the draft")
    parser.add_argument("--greedy-steps", type=int, default=3000)
    parser.add_argument("--greedy-rate", type=float, default=2e-3)
    parser.add_argument("--last-stage", action="store_true", help="train the last stage of the zoo's draft alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()

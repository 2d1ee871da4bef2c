"""Rebuilds the embedded pair in specjax/zoo: tokenizer, target, draft (plain training, then distillation from the target).

    python scripts/train_zoo.py --work /tmp/zoo            about two hours on 2 CPU cores, minutes on a GPU

Deterministic for a given Python version, machine and ``--seed``; interrupted, it goes on from its last checkpoint in --work.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specjax.config import ModelConfig
from specjax.models.decoder import Decoder
from specjax.training import data, losses
from specjax.training.loop import fit, optimizer

ZOO = Path(__file__).resolve().parent.parent / "specjax" / "zoo"
END = "<|endoftext|>"
DECAY = 0.4
COMMON = dict(
    family="llama", vocab_size=4096, max_position_embeddings=2048, norm_eps=1e-5, tie_embeddings=True, bos_token_id=0, eos_token_ids=(0,)
)
TARGET = ModelConfig(hidden_size=384, intermediate_size=1024, num_layers=8, num_heads=6, num_kv_heads=2, head_dim=64, **COMMON)
DRAFT = ModelConfig(hidden_size=128, intermediate_size=384, num_layers=2, num_heads=4, num_kv_heads=1, head_dim=32, **COMMON)


def main():
    args = parse_arguments()
    nnx.use_eager_sharding(False)
    train_texts, held_texts = (data.read_texts(data.standard_library(held_out=h)) for h in (False, True))
    tokenizer = train_tokenizer(train_texts)
    stream, held = (data.token_stream(texts, tokenizer, 0) for texts in (train_texts, held_texts))
    windows = np.stack([held[i : i + args.length + 1] for i in np.linspace(0, held.size - args.length - 1, 24).astype(int)])
    print(f"{stream.size} training tokens, {held.size} held out", flush=True)

    def train(name, config, loss, steps, rate, start=None, extra=()):
        evaluate = jax.jit(losses.next_token)
        report = lambda step, model: (
            "held-out " + " ".join(f"{v:.4f}" for v in [float(np.mean([evaluate(model, w) for w in np.split(windows, 6)]))])
        )
        model = start or nnx.jit(lambda: Decoder(config, jax.random.key(args.seed)))()
        short = int(steps * (1 - DECAY))  # short windows while the rate is high: attention is what a CPU is slow at
        batches = lambda step: data.batch_at(
            stream, args.seed, step, *((2 * args.batch, args.length // 2) if step < short else (args.batch, args.length))
        )
        return fit(model, loss, batches, optimizer(rate, steps, decay=DECAY), steps, args.work / name, extra, report, args.every)

    began = time.time()
    target = train("target", TARGET, losses.next_token, args.target_steps, args.target_rate)
    print(f"target done after {time.time() - began:.0f} s", flush=True)
    draft = train("draft", DRAFT, losses.next_token, args.draft_steps, args.draft_rate)
    draft = train("distilled", DRAFT, losses.distillation, args.distill_steps, args.draft_rate / 2, draft, (target,))
    print(f"all done after {time.time() - began:.0f} s", flush=True)


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 4096 tokens; the end-of-text token stands between documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, clean_up_tokenization_spaces=False)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory of checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8, help="windows a step")
    parser.add_argument("--length", type=int, default=512, help="tokens a window")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--target-steps", type=int, default=560)
    parser.add_argument("--target-rate", type=float, default=3e-3)
    parser.add_argument("--draft-steps", type=int, default=400)
    parser.add_argument("--distill-steps", type=int, default=400)
    parser.add_argument("--draft-rate", type=float, default=5e-3)
    return parser.parse_args()


if __name__ == "__main__":
    main()

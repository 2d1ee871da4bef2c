"""Measures the least cost of a drafter on the host.

    python scripts/host_lookup.py [--method suffix] [--repeats 15]

It compares rounds that give the text to the host and wait for it with rounds on the device alone.
"""

import argparse
import time

import jax.numpy as jnp
import numpy as np

from specjax import Generator, load
from specjax.evaluation import held_out_prompts
from specjax.evaluation.shares import drafting_share

ROUNDS = 24


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="suffix", help="a method that drafts without a model")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    target = load("tiny-python")
    generator = Generator(target, args.method, capacity=512)
    prompt = target.tokenizer.encode(held_out_prompts(target.tokenizer, 2, 128)[1])

    def seconds(rounds: int) -> float:
        """Seconds of all rounds. After every few ``rounds`` the text goes to the host and back."""
        decoding = generator.start([prompt], max_new_tokens=ROUNDS * (generator.drafter.depth + 1), ignore_eos=True)
        began = time.perf_counter()
        for _ in range(ROUNDS // rounds):
            generator.session.advance(decoding, rounds)
            decoding.state = decoding.state.replace(tokens=jnp.asarray(np.asarray(decoding.state.tokens)))
        return time.perf_counter() - began

    seconds(ROUNDS), seconds(1)
    pairs = np.array([(seconds(ROUNDS), seconds(1)) for _ in range(args.repeats)]) / ROUNDS * 1e3
    low, median, high = np.percentile(1 - pairs[:, 0] / pairs[:, 1], [25, 50, 75])
    device, host = np.median(pairs, 0)
    print(f"a round on the device {device:.2f} ms, with a stop for the host {host:.2f} ms")
    print(f"the stop is {median:.1%} of the latter (quartiles {low:.1%} to {high:.1%})")
    low, median, high = drafting_share(generator, prompt)
    print(f"drafting on the device is {median:.1%} of a round (quartiles {low:.1%} to {high:.1%})")


if __name__ == "__main__":
    main()

"""What a drafter on the host would cost before it looks anything up: rounds that hand the text over and wait, against rounds on the device.

python scripts/host_lookup.py [--method suffix] [--repeats 15]
"""

import argparse
import time

import jax.numpy as jnp
import numpy as np

from specjax import Generator, load
from specjax.evaluation import held_out_prompts
from specjax.evaluation.shares import drafting_share
from specjax.requests.options import Options

ROUNDS = 24


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="suffix", help="one that drafts without a model")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    target = load("tiny-python")
    generator = Generator(target, args.method, capacity=512)
    prompt = target.tokenizer.encode(held_out_prompts(target.tokenizer, 2, 128)[1])
    options = Options.of(dict(max_new_tokens=ROUNDS * (generator.drafter.depth + 1), ignore_eos=True))

    def seconds(stops) -> float:
        """Of the rounds, with a stop after each of ``stops`` for the host to read the text and hand a draft back."""
        state, _, _ = generator._start([prompt], options)
        began = time.perf_counter()
        for stop in stops:
            state = generator._run(state, stop, [0.0, 0.0, 0.0])
            text = np.asarray(state.tokens)
            state = state.replace(tokens=jnp.asarray(text))
        return time.perf_counter() - began

    whole, each = (ROUNDS,), range(1, ROUNDS + 1)
    seconds(whole), seconds(each)
    pairs = np.array([(seconds(whole), seconds(each)) for _ in range(args.repeats)]) / ROUNDS * 1e3
    low, median, high = np.percentile(1 - pairs[:, 0] / pairs[:, 1], [25, 50, 75])
    print(f"a round on the device {np.median(pairs[:, 0]):.2f} ms, with a stop for the host {np.median(pairs[:, 1]):.2f} ms")
    print(f"the stop is {median:.1%} of it (quartiles {low:.1%} to {high:.1%})")
    low, median, high = drafting_share(generator, prompt)
    print(f"drafting on the device is {median:.1%} of a round (quartiles {low:.1%} to {high:.1%})")


if __name__ == "__main__":
    main()

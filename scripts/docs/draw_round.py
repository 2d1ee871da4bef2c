"""Draws a round: the proposed tree, the accepted path, and the bonus token.

    python scripts/docs/draw_round.py [--prompt TEXT] [--output docs/pictures/round.svg]

It draws the round that accepted most among the first rounds after the prompt. Needs matplotlib.
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import matplotlib
import numpy as np

import specjax
from specjax.drafters import DynamicTree
from specjax.loop import decode
from specjax.rules.acceptance import resolve

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "specjax"
ROOT = Path(__file__).resolve().parents[2]
ACCEPTED, REJECTED, BONUS, INK = "#2f855a", "#cbd5e0", "#2b6cb0", "#1a202c"
ROUNDS = 12


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", default="import os\nimport sys\n\n\ndef main(argv=None):\n    parser = argparse.")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "pictures" / "round.svg")
    args = parser.parse_args()
    target, draft = specjax.load("tiny-python"), specjax.load("tiny-python-draft")
    text, tree, verdict = best_round(target, draft, args.prompt)
    draw(target.tokenizer, text, tree, verdict, args.output)


def best_round(target, draft, prompt: str):
    """The round that accepted most: the text before it, its tree and its verdict, on the host."""
    drafter = DynamicTree(tree_nodes=15, tree_depth=5, tree_top_k=3, tree_temperature=0.5)
    requests = specjax.make_requests([target.tokenizer.encode(prompt)], drafter=drafter, max_new_tokens=80)
    state = jax.jit(partial(specjax.prefill, drafter=drafter))(target.model, draft.model, requests)
    rule = resolve("auto", drafter.drawn)

    @jax.jit
    def play(state):
        propose_key, accept_keys = decode.round_keys(state, drafter.depth + 1)
        tree, drafted = decode.propose(target.model, draft.model, state, propose_key, drafter=drafter)
        scored = decode.score(target.model, tree, state, drafter.taps, drafted)
        p, verdict, failed = decode.accept(target.model, tree, scored, state, accept_keys, rule=rule)
        round = decode.Round(tree, drafted, scored, p, verdict, failed)
        return decode.commit(target.model, draft.model, state, round, drafter=drafter), (tree, verdict)

    rounds = []
    for _ in range(ROUNDS):
        text = target.tokenizer.decode(np.asarray(state.tokens[0, : int(state.length[0])]))
        state, found = play(state)
        rounds.append((text, *jax.tree.map(lambda x: np.asarray(x)[0], found)))
    return max(rounds, key=lambda found: int(found[2].length))


def draw(tokenizer, text: str, tree, verdict, path: Path) -> None:
    """Draws each node as a box. Depth grows to the right, and each leaf has a row of its own."""
    import matplotlib.pyplot as plt

    x, y = layout(tree)
    accepted = set(verdict.path[: verdict.length].tolist())
    width, height = 1.75 * (x.max() + 2.4), 0.42 * (y.max() + 2.2)
    figure, axes = plt.subplots(figsize=(width, height))
    label = lambda token: repr(tokenizer.decode([int(token)]))[1:-1].replace(" ", "·") or "∅"

    def box(at, token, colour, ink):
        frame = dict(boxstyle="round,pad=0.35", facecolor=colour, edgecolor="none")
        axes.text(*at, label(token), family="monospace", size=9, color=ink, ha="center", va="center", bbox=frame)

    for node, parent in enumerate(tree.parent.tolist()):
        if node and tree.valid[node]:
            on_path = node in accepted
            style = dict(color=ACCEPTED if on_path else REJECTED, linewidth=2 if on_path else 1, zorder=0)
            axes.plot([x[parent], x[node]], [y[parent], y[node]], **style)
    for node, token in enumerate(tree.tokens.tolist()):
        if tree.valid[node]:
            chosen = node in accepted
            box((x[node], y[node]), token, ACCEPTED if chosen else REJECTED, "white" if chosen else INK)
    last = int(verdict.path[verdict.length - 1])
    axes.plot([x[last], x[last] + 1], [y[last], y[last]], color=BONUS, linewidth=2, zorder=0)
    box((x[last] + 1, y[last]), verdict.bonus, BONUS, "white")
    drafted = int(tree.valid.sum()) - 1
    title = (
        f"{drafted} tokens proposed, {int(verdict.length) - 1} accepted (green), one more from the target (blue): "
        f"{int(verdict.length)} tokens in one target call"
    )
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_axis_off()
    axes.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    print(f"{path}: after {text[-40:]!r}")


def layout(tree) -> tuple[np.ndarray, np.ndarray]:
    """The places of the nodes: x is the depth, y the row of a node's first leaf."""
    parent, N = tree.parent.tolist(), tree.parent.size
    children = {node: [c for c in range(1, N) if parent[c] == node and tree.valid[c]] for node in range(N)}
    x, y, rows = np.zeros(N), np.zeros(N), iter(range(N))

    def place(node: int, depth: int) -> None:
        x[node] = depth
        for child in children[node]:
            place(child, depth + 1)
        y[node] = y[children[node][0]] if children[node] else next(rows)

    place(0, 0)
    return x, y


if __name__ == "__main__":
    main()

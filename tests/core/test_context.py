"""The history of each node of a tree, against lists in plain Python; options that read it, against transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.context import Context
from specjax.core.sampling import adjust, sampling_params
from specjax.core.tree import Tree, ancestors

V, T, NODES, END = 11, 24, 7, 4


masks_of = jax.jit(jax.vmap(ancestors))
read = jax.jit(lambda context: (context.generated, context.counts(V), context.seen(V), context.last(4)))


def histories(seed: int) -> tuple[Context, list[list[tuple[list[int], int]]]]:
    """A context of three rows with random trees. For each row and node also its tokens and how many of them are the prompt's."""
    rng = np.random.default_rng(seed)
    prompt, length = np.array([1, 6, 9]), np.array([1, 6, 15])
    text, nodes = rng.integers(0, V, (3, T)), rng.integers(0, V, (3, NODES))
    parent = np.array([[rng.integers(0, max(i, 1)) for i in range(NODES)] for _ in range(3)])
    nodes[:, 0] = text[range(3), length - 1]
    tree = Tree(*map(np.asarray, (nodes, parent, np.ones((3, NODES), bool))), max_depth=NODES - 1)
    path = np.array(masks_of(tree))
    path[:, :, 0] = False
    whole = lambda values: np.asarray(values, np.int32)
    context = Context(
        tokens=whole(text),
        prompt_length=whole(prompt),
        length=whole(length),
        limit=whole(np.full(3, T)),
        stop_ids=whole([[END, -1]] * 3),
        nodes=whole(nodes),
        path=path,
        states=np.zeros((3, NODES), np.int32),
    )

    def lineage(b: int, i: int) -> list[int]:
        return [] if i == 0 else [*lineage(b, parent[b, i]), int(nodes[b, i])]

    return context, [
        [(text[b, : length[b]].tolist() + lineage(b, i), prompt[b]) for i in range(NODES)] for b in range(3)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_each_node_has_its_own_history(seed):
    context, wanted = histories(seed)
    generated, counts, seen, last = jax.device_get(read(context))
    for b, row in enumerate(wanted):
        for i, (tokens, prompt) in enumerate(row):
            new = tokens[prompt:]
            assert generated[b, i] == len(new)
            assert counts[b, i].tolist() == [new.count(v) for v in range(V)]
            assert seen[b, i].tolist() == [v in tokens for v in range(V)]
            assert last[b, i].tolist() == ([-1] * 4 + tokens)[-4:]


def test_penalties_of_a_node_follow_from_its_own_history():
    """Tokens on the path, repeated ones and those of the prompt alone, each by the definition of its option."""
    context, wanted = histories(3)
    rng = np.random.default_rng(3)
    logits, bias = (rng.normal(0, 2, shape).astype(np.float32) for shape in ((3, NODES, V), (3, V)))
    bias[1, 2] = -np.inf
    repetition, presence, frequency, least = [1.4, 1.0, 0.8], [0.5, 0.0, -0.3], [0.0, 0.2, 0.1], [3, 0, 9]
    options = dict(repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    params = sampling_params(3, **options, min_new_tokens=least, bias=jnp.asarray(bias))
    ours = np.asarray(jax.jit(adjust)(jnp.asarray(logits), params, context))
    for b, row in enumerate(wanted):
        for i, (tokens, prompt) in enumerate(row):
            new = tokens[prompt:]
            for v in range(V):
                logit = logits[b, i, v] + bias[b, v]
                if v in tokens:
                    logit = logit * repetition[b] if logit < 0 else logit / repetition[b]
                logit -= frequency[b] * new.count(v) + presence[b] * (v in new)
                if v == END and len(new) < least[b]:
                    logit = -np.inf
                np.testing.assert_allclose(ours[b, i, v], logit, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_lookback_options_and_their_order_are_those_of_transformers():
    torch = pytest.importorskip("torch", reason="the processors of transformers work on torch tensors")
    from transformers.generation import logits_process as hf

    context, wanted = histories(9)
    logits = np.random.default_rng(1).normal(0, 2, (3, NODES, V)).astype(np.float32)
    bias, suppressed = {2: 1.5, 5: -2.0}, [7]
    row = np.zeros(V, np.float32)
    row[list(bias)] = list(bias.values())
    row[suppressed] = -np.inf
    least = 4
    params = sampling_params(3, repetition_penalty=1.4, min_new_tokens=least, bias=jnp.tile(row, (3, 1)))
    ours = np.asarray(jax.jit(adjust)(logits, params, context))
    early = 0
    for b, nodes in enumerate(wanted):
        for i, (tokens, prompt) in enumerate(nodes):
            processors = hf.LogitsProcessorList(
                [
                    hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
                    hf.RepetitionPenaltyLogitsProcessor(1.4),
                    hf.MinNewTokensLengthLogitsProcessor(int(prompt), least, [END], device="cpu"),
                    hf.SuppressTokensLogitsProcessor(suppressed),
                ]
            )
            theirs = processors(torch.tensor([tokens]), torch.tensor(logits[b, i])[None]).numpy()[0]
            np.testing.assert_allclose(ours[b, i], theirs, rtol=1e-6)
            early += np.isneginf(theirs[END])
    assert 0 < early < 3 * NODES

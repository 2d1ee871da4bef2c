"""Trees from draft models against plain Python that reads every text from its beginning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoding import rounds, spell_paths, texts
from support.models import disturbed, p_value, random_prompts, tiny_model
from support.reference import log_softmax, logits_after, rank_tokens

from specjax import RequestError
from specjax.core.sampling import sampling_params, siblings
from specjax.core.tree import expansion, from_paths, topology
from specjax.drafters import DraftTree, DynamicTree

TARGET = tiny_model(0, 8.0, num_layers=1)
DRAFT = disturbed(TARGET)
PROMPTS = [[7], *random_prompts(3, 30, seed=4)]
WINDOWED = dict(family="mistral", num_layers=1, windows=(4,))


def expand_tree(model, text: list[int], shape) -> dict[tuple[int, ...], tuple]:
    """SpecInfer, section 3: every node's i-th child is the i-th likeliest token after it.

    Returns the tokens on the way to each node.
    """
    found = {(): ()}
    for path in shape.paths[1:]:
        above = found[path[:-1]]
        best = rank_tokens(logits_after(model, text + list(above)), path[-1] + 1)
        found[path] = (*above, best[-1])
    return found


def grow_best_first(
    model, text: list[int], nodes: int, depth: int, top_k: int, temperature: float = 1.0
) -> set[tuple[int, ...]]:
    """EAGLE-2, section 4: expand the top_k likeliest nodes of each level, then keep the likeliest
    of all candidates.
    """
    frontier, candidates = [((), 0.0)], {}
    for _ in range(depth):
        children = []
        for path, value in frontier:
            logs = log_softmax(logits_after(model, text + list(path)) / temperature)
            for token in rank_tokens(logs, top_k):
                children.append(((*path, token), value + logs[token]))
        candidates |= dict(children)
        frontier = sorted(children, key=lambda child: -child[1])[:top_k]
    return set(sorted(candidates, key=lambda path: -candidates[path])[:nodes])


@pytest.mark.parametrize(
    "shape",
    [
        from_paths([(0,), (2,), (0, 0), (0, 3), (2, 0), (0, 0, 0)]),
        pytest.param(expansion((4,)), marks=pytest.mark.slow),
    ],
    ids=["ranks left out", "one level"],
)
def test_likeliest_children_equal_plain_python(shape):
    for state, tree in rounds(TARGET, DRAFT, DraftTree(shape, "top_k"), 4, PROMPTS):
        for b, text in enumerate(texts(state)):
            assert spell_paths(tree, b) == list(expand_tree(DRAFT, text, shape).values())
    assert np.asarray(state.cache.length).tolist() != [len(prompt) - 1 for prompt in PROMPTS]


@pytest.mark.parametrize("sizes", [(14, 3, 4, 0.5), pytest.param((3, 2, 5), marks=pytest.mark.slow)], ids=str)
def test_dynamic_trees_equal_plain_python(sizes):
    for state, tree in rounds(TARGET, DRAFT, DynamicTree(*sizes), 4, PROMPTS):
        for b, text in enumerate(texts(state)):
            assert set(spell_paths(tree, b)[1:]) == grow_best_first(DRAFT, text, *sizes)


@pytest.mark.parametrize("how", ["without_replacement", pytest.param("independent", marks=pytest.mark.slow)])
def test_q_equals_the_drafts_distribution_after_each_node(how):
    """The draft has an attention window, for which positions of uncommitted rows matter."""
    target = tiny_model(0, 8.0, **WINDOWED)
    shape = expansion((2, 1, 2))
    for state, tree in rounds(target, target, DraftTree(shape, how), 3, PROMPTS, temperature=1.3):
        for b, text in enumerate(texts(state)):
            for node, path in enumerate(spell_paths(tree, b)):
                if node in shape.parent:
                    wanted = np.exp(log_softmax(logits_after(target, text + list(path)) / 1.3))
                    np.testing.assert_allclose(tree.q[b, node], wanted, rtol=1e-3, atol=1e-6)
                else:
                    assert not np.any(tree.q[b, node])


@pytest.mark.parametrize("how", ["without_replacement", "independent"])
def test_siblings_have_the_law_of_their_draws(how):
    q, draws = np.array([0.5, 0.3, 0.15, 0.05, 0.0]), 20_000
    wanted = np.outer(q, q)
    if how == "without_replacement":
        wanted = np.outer(q, q) / (1 - q)[:, None]
        np.fill_diagonal(wanted, 0)
    arrays = (jnp.asarray(np.tile(x, (draws, 1, 1)), jnp.float32) for x in (np.log(np.maximum(q, 1e-30)), q))
    tokens, exists = siblings(jax.random.split(jax.random.key(0), draws), *arrays, sampling_params(draws, 1.0), 2, how)
    assert np.all(exists)
    pairs = np.bincount(np.asarray(tokens[:, 0, 0] * 5 + tokens[:, 0, 1]), minlength=25)
    assert p_value(pairs, wanted) > 1e-3


def test_draws_without_replacement_end_with_the_last_possible_token():
    q = jnp.array([[[0.0, 0.6, 0.0, 0.4]]])
    tokens, exists = siblings(
        jax.random.split(jax.random.key(0), 1), jnp.log(q), q, sampling_params(1, 1.0), 3, "without_replacement"
    )
    assert exists[0, 0].tolist() == [True, True, False] and set(tokens[0, 0, :2].tolist()) == {1, 3}


def test_topologies_of_published_lists():
    medusa = [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0]]
    shape = from_paths(medusa)
    assert shape.parent == (0, 0, 0, 0, 1, 1, 4) and shape.rank == (0, 0, 1, 2, 0, 1, 0)
    assert shape.depths == (0, 1, 1, 1, 2, 2, 3) and set(shape.paths[1:]) == set(map(tuple, medusa))
    assert (
        topology("1, 2,1") == expansion((1, 2, 1)) and len(expansion((1, 1, 3, 1, 1, 1, 1, 1)).parent) == 1 + 2 + 6 * 3
    )


def test_trees_are_read_from_files(tmp_path):
    file = tmp_path / "tree.toml"
    file.write_text("paths = [[0], [1], [0, 0]]\n")
    assert topology(str(file)) == from_paths([(0,), (1,), (0, 0)])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: from_paths([]), "no node"),
        (lambda: from_paths([(0,), (0,)]), "twice"),
        (lambda: from_paths([(0,), (1, 0)]), "gap: node (1, 0)"),
        (lambda: from_paths([(-1,)]), "rank"),
        (lambda: expansion((2, 0)), "widths"),
        (lambda: topology("2,x"), "give widths such as"),
        (lambda: DraftTree(from_paths([(0,), (2,)])), "leaves out a rank"),
        (lambda: DraftTree(siblings="beam"), "siblings 'beam'"),
        (lambda: DynamicTree(tree_nodes=4, tree_depth=4), "tree_nodes must be 5 to"),
        (lambda: DynamicTree(tree_depth=1), "tree_depth"),
        (lambda: DynamicTree(tree_temperature=0.0), "tree_temperature must be a number, above 0"),
    ],
)
def test_impossible_trees_are_refused_in_one_line(make, named):
    with pytest.raises(RequestError) as error:
        make()
    assert named in str(error.value) and "\n" not in str(error.value)


def test_files_without_a_tree_are_named(tmp_path):
    for content, named in ((b"paths = 3", "no tree"), (b"paths = [", "not TOML"), (b"\xff", "not UTF-8")):
        (tmp_path / "t.toml").write_bytes(content)
        with pytest.raises(RequestError, match=named):
            topology(str(tmp_path / "t.toml"))

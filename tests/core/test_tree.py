"""Ancestor masks against walking up the parents, one node at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.core.read_files import LARGEST_TOML
from specjax.core.tree import Tree, ancestors, as_topology, chain
from specjax.errors import RequestError


def upwards(parent: np.ndarray) -> np.ndarray:
    """The ancestor matrix of one tree, by following parents."""
    mask = np.eye(len(parent), dtype=bool)
    for node in range(len(parent)):
        above = node
        while above != 0:
            above = parent[above]
            mask[node, above] = True
    return mask


def random_parents(rng, count: int, nodes: int, bushy: float) -> np.ndarray:
    """Topologically ordered trees int32 [count, nodes], from nearly chains (``bushy`` = 0) to parents anywhere before (1)."""
    newest = np.arange(nodes) - 1
    anywhere = (rng.random((count, nodes)) * np.arange(nodes)).astype(int)
    return np.maximum(np.where(rng.random((count, nodes)) < bushy, anywhere, newest), 0).astype(np.int32)


masks_of = jax.jit(jax.vmap(ancestors))


def masks(parent: np.ndarray, max_depth: int) -> np.ndarray:
    """``ancestors`` of many trees [count, nodes]."""
    tree = Tree(np.zeros_like(parent), parent, np.ones_like(parent, bool), max_depth=max_depth)
    return np.asarray(masks_of(tree))


@pytest.mark.parametrize("bushy", [0.0, 0.3, 1.0])
def test_ancestors_are_the_nodes_on_the_way_to_the_root(bushy):
    parent = random_parents(np.random.default_rng(0), 100, 23, bushy)
    expected = np.stack([upwards(p) for p in parent])
    deepest = int(expected.sum(-1).max()) - 1
    np.testing.assert_array_equal(masks(parent, deepest), expected)  # the bound is tight
    np.testing.assert_array_equal(masks(parent, deepest + 5), expected)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 8, 9, 17])
def test_a_chain_sees_everything_before_it(nodes):
    tree, above = jax.jit(lambda tokens: (tree := chain(tokens), ancestors(tree)))(np.arange(nodes, dtype=np.int32))
    assert tree.max_depth == nodes - 1 and tree.parent.tolist() == [max(i - 1, 0) for i in range(nodes)]
    np.testing.assert_array_equal(above, np.tril(np.ones((nodes, nodes), bool)))


def test_a_star_sees_only_the_root():
    expected = np.eye(6, dtype=bool)
    expected[:, 0] = True
    np.testing.assert_array_equal(masks(np.zeros((1, 6), np.int32), 1)[0], expected)


def test_a_handle_with_a_brush_at_its_end():
    parent = np.array([[0, 0, 1, 2, 3, 4, 4, 4]], np.int32)  # the leaves are at the largest depth, and each alone there
    np.testing.assert_array_equal(masks(parent, 5)[0], upwards(parent[0]))


def test_depth_is_one_less_than_the_number_of_ancestors():
    parent = random_parents(np.random.default_rng(1), 20, 15, 0.5)
    depth = np.zeros_like(parent)
    for node in range(1, 15):
        depth[:, node] = depth[np.arange(20), parent[:, node]] + 1
    np.testing.assert_array_equal(masks(parent, int(depth.max())).sum(-1) - 1, depth)


def test_chain_keeps_what_it_is_given():
    q, valid = jnp.ones((3, 4)) / 4, jnp.array([True, True, False])
    tree = chain(jnp.array([7, 8, 9]), q, valid)
    assert tree.tokens.tolist() == [7, 8, 9] and tree.q is q and tree.valid is valid
    assert chain(jnp.array([7, 8, 9])).valid.all() and chain(jnp.array([7])).q is None
    batch = jax.jit(jax.vmap(chain))(np.zeros((5, 3), np.int32), np.zeros((5, 3, 4), np.float32))
    assert batch.max_depth == 2 and batch.parent.shape == (5, 3) and batch.valid.all()


def test_trees_beyond_the_limits_are_refused_before_they_are_built(tmp_path):
    large, deep = tmp_path / "large.toml", tmp_path / "deep.toml"
    large.write_bytes(b"#" * (LARGEST_TOML + 1))
    deep.write_text("paths = " + "[" * 100_000)
    assert len(as_topology((64, 63)).parent) == 4097  # 4096 nodes and the root
    for tree, named in [
        ((64, 64), "MOST_TREE_NODES"),
        ((1000,) * 1000, "MOST_TREE_NODES"),
        ("99999999999,9", "MOST_TREE_NODES"),
        (large, "above the limit of 1,048,576 bytes"),
        (deep, "nests too deeply"),
        (tmp_path, "cannot be read (Is a directory); give widths such as 1,1,3,1 or a TOML file"),
        ("a\0b", "null byte"),
        ("9" * 5000, "give widths such as"),
        ([0] * 1000, "not (0, 0, "),
        (7, "not 7"),
    ]:
        with pytest.raises(RequestError) as error:
            as_topology(tree)
        assert named in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize("rank", ["true", "99999999999999999999", "2147483648", "-1", "0.5", "'a'", "1979-05-27"])
def test_a_rank_in_a_file_is_a_whole_number(rank, tmp_path):
    (tmp_path / "tree.toml").write_text(f"paths = [[{rank}]]")
    with pytest.raises(RequestError, match="the tree has a rank that is no whole number from 0|must be widths"):
        as_topology(tmp_path / "tree.toml")


@pytest.mark.parametrize("tree", [[0, (0, 0)], [(0,), 1]])
def test_widths_and_paths_are_not_mixed(tree):
    with pytest.raises(RequestError, match="mixes widths and paths.*give widths alone or paths alone"):
        as_topology(tree)

"""What comes with the library: the embedded heads fit the embedded target, are taken without being named, and agree with it often."""

from pathlib import Path

import pytest

import specjax
from specjax import Generator, load_drafter
from specjax.checkpoints.hub import zoo

HEADS = {"medusa": 1.6, "eagle3": 2.5, "mtp": 2.0, "block": 1.3}  # tokens a call that an untrained head is far from


@pytest.fixture(scope="module")
def target():
    return specjax.load("tiny-python")


def test_all_heads_are_small():
    """Of the heads that a wheel has no room for, a checkout has files; see ``test_wheel`` for its size."""
    folder = Path(specjax.__file__).parent / "checkpoints/zoo"
    for name in zoo():
        if not (folder / name / "tokenizer.json").exists():
            assert sum(path.stat().st_size for path in (folder / name).iterdir()) < 16e6
    assert all(any(f"tiny-python-{kind}" == name for name in zoo()) for kind in HEADS)


@pytest.mark.parametrize("kind", HEADS)
def test_embedded_heads_fit_the_embedded_target(target, kind):
    head = load_drafter(f"tiny-python-{kind}", target)
    assert head.config.kind == kind
    (found,) = Generator(target, kind).drafts  # no draft is named
    assert found.name == head.name == f"tiny-python-{kind}"


@pytest.mark.parametrize("kind", ["block", *(pytest.param(k, marks=pytest.mark.slow) for k in HEADS if k != "block")])
def test_embedded_heads_draft_what_the_target_says(target, kind):
    options = dict(tree_nodes=7, tree_depth=3, tree_top_k=2) if kind == "eagle3" else {}
    generator = Generator(target, kind, **options)
    prompt = "import os\n\n\nclass Path:\n    def __init__(self, path):\n        self.path = path\n\n    def"
    result = generator(prompt, max_new_tokens=48, ignore_eos=True)
    assert result.stats.mean_acceptance_length > HEADS[kind]

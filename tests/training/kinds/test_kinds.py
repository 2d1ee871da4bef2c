"""Every kind of head can be trained, and draft models too."""

from specjax import heads
from specjax.training.kinds import KINDS


def test_every_kind_of_head_can_be_trained():
    """Except assistants, which read the target's cache."""
    trained = heads.KINDS.keys() - {"assistant"}
    assert KINDS.keys() == trained | {"draft", "boost", "feedback", "online"}
    assert {name for name, kind in KINDS.items() if kind.is_head} == trained | {"online"}
    assert all(kind.name == name for name, kind in KINDS.items())

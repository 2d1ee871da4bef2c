"""Every kind of head can be trained, and draft models too."""

from specjax import heads
from specjax.training.kinds import KINDS


def test_every_kind_of_head_can_be_trained():
    assert KINDS.keys() == heads.KINDS.keys() | {"draft", "boost", "feedback"}
    assert {name for name, kind in KINDS.items() if kind.is_head} == heads.KINDS.keys()
    assert all(kind.name == name for name, kind in KINDS.items())

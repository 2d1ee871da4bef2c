"""The order of waiting requests, against shares counted by hand and an ideal division of the work."""

import numpy as np
import pytest

from specjax import RequestError
from specjax.engine.fair_queue import FairQueue, Standing


def queue_of(*entries) -> FairQueue:
    """A queue of (item, owner, priority, cost)."""
    queue = FairQueue()
    for item, owner, priority, cost in entries:
        queue.add(item, Standing(priority, owner), cost)
    return queue


def drained(queue: FairQueue) -> list:
    order = list(queue)
    assert [queue.pop() for _ in range(len(queue))] == order
    return order


def test_requests_of_one_owner_keep_their_order():
    assert drained(queue_of(*[(i, "a", 0, cost) for i, cost in enumerate([9, 1, 5, 1])])) == [0, 1, 2, 3]


def test_a_lower_priority_number_is_earlier():
    assert drained(queue_of((0, "a", 3, 1), (1, "a", 0, 1), (2, "b", -2, 9), (3, "b", 0, 1))) == [2, 1, 3, 0]


def test_a_flood_does_not_hold_back_another_owner():
    flood = [(f"a{i}", "a", 0, 10) for i in range(50)]
    order = drained(queue_of(*flood, ("b0", "b", 0, 10), ("b1", "b", 0, 10)))
    assert order[:5] == ["a0", "b0", "a1", "b1", "a2"]


def test_an_owner_who_comes_later_gets_no_credit_and_no_debt():
    queue = queue_of(*[(f"a{i}", "a", 0, 10) for i in range(20)])
    for _ in range(10):
        queue.pop()
    for i in range(3):
        queue.add(f"b{i}", Standing(0, "b"), 10)
    assert [queue.pop() for _ in range(6)] == ["b0", "a10", "b1", "a11", "b2", "a12"]


def test_an_empty_queue_forgets_costs():
    queue = queue_of(("a0", "a", 0, 1000))
    queue.pop()
    queue.add("a1", Standing(0, "a"), 10)
    queue.add("b0", Standing(0, "b"), 10)
    assert drained(queue) == ["a1", "b0"]


def test_cancelled_requests_leave_the_others_in_order():
    queue = queue_of(*[(f"{owner}{i}", owner, 0, 1) for i in range(3) for owner in "ab"])
    queue.remove({"a0", "b2"})
    assert drained(queue) == ["b0", "a1", "b1", "a2"]
    queue.clear()
    assert len(queue) == 0


def test_shares_of_work_are_equal_up_to_one_request_of_each_owner():
    """While two owners wait, the work that they began differs by at most their largest costs (theorem 1)."""
    rng = np.random.default_rng(0)
    items = [
        (owner, int(cost)) for owner, most in (("a", 4), ("b", 40), ("c", 400)) for cost in rng.integers(1, most, 300)
    ]
    entries = [(i, items[i][0], 0, items[i][1]) for i in rng.permutation(len(items))]
    queue, begun = queue_of(*entries), dict.fromkeys("abc", 0)
    while {items[i][0] for i in queue} == set("abc"):
        owner, cost = items[queue.pop()]
        begun[owner] += cost
        for one, other in ("ab", "ac", "bc"):
            most = sum(max(cost for name, cost in items if name == each) for each in (one, other))
            assert abs(begun[one] - begun[other]) <= most
    assert min(begun.values()) > 500


def test_an_engine_begins_requests_in_this_order(engine):
    busy = [engine.submit([3 + i], max_new_tokens=40, ignore_eos=True) for i in range(engine.slots)]
    while engine.num_waiting:
        engine.step()
    began, asked = [], [("a", 0), ("a", 0), ("a", 0), ("b", 0), ("c", -1), ("d", 1)]
    for i, (owner, priority) in enumerate(asked):
        handle = engine.submit([9], max_new_tokens=4, ignore_eos=True, standing=Standing(priority, owner))
        handle.watch(lambda i=i, handle=handle: handle.token_ids and i not in began and began.append(i))
    while engine.has_work:
        engine.step()
    assert all(handle.result() for handle in busy) and began == [4, 0, 3, 1, 2, 5]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(priority=2**31), "priority must be"),
        (dict(priority=0.5), "priority must be"),
        (dict(priority=True), "priority must be"),
        (dict(owner=3), "owner must be a string"),
    ],
)
def test_a_standing_out_of_bounds_is_refused(fields, message):
    with pytest.raises(RequestError, match=message):
        Standing(**fields)

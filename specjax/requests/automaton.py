"""Turns a pattern into a deterministic automaton over bytes.

Thompson's construction gives a nondeterministic automaton. The subset construction makes it
deterministic.
"""

import numpy as np

from ..errors import RequestError
from .characters import Spelling, partition
from .limits import check_limit
from .pattern import Character, Either, Pattern, Repeat, Sequence

FINAL = 0
"""The node of ``_Graph`` that ends the match."""


def byte_automaton(pattern: Pattern, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The automaton over UTF-8 of the texts that ``pattern`` matches in full; it starts in state 0.

    Returns:
      moves: int32 [S, 256], the state after each byte; -1 where no match continues with this byte.
      final: bool [S], whether the text so far is a full match.

    Raises RequestError, which begins with ``name``, where a limit of ``limits`` is exceeded.
    """
    graph = _Graph(name)
    try:
        start = graph.add(pattern, FINAL)
    except RecursionError:
        raise RequestError(f"{name} nests too deeply; use fewer levels") from None
    label, holds = partition(list(graph.sets))
    moves, final = _subsets(graph, start, [np.flatnonzero(row).tolist() for row in holds], holds.shape[1])
    return _spell_out(moves, final, Spelling(label), name)


class _Graph:
    """A nondeterministic automaton.

    Node i reads one character of the set ``reads[i]``, or no character where that is None. It leads
    to the nodes ``after[i]``.
    """

    def __init__(self, name: str):
        self.name = name
        self.sets = {}
        self.reads: list[int | None] = [None]
        self.after: list[list[int]] = [[]]

    def _node(self, reads: int | None, *after: int) -> int:
        check_limit(
            len(self.reads), "MOST_PIECES", f"{self.name}: its size with repetitions written out", "repeat less"
        )
        self.reads.append(reads)
        self.after.append(list(after))
        return len(self.reads) - 1

    def add(self, pattern: Pattern, then: int) -> int:
        """Adds nodes that read ``pattern`` and lead to node ``then``; returns the first node."""
        if isinstance(pattern, Character):
            return self._node(self.sets.setdefault(pattern.ranges, len(self.sets)), then)
        if isinstance(pattern, Sequence):
            for part in reversed(pattern.parts):
                then = self.add(part, then)
            return then
        if isinstance(pattern, Either):
            return self._node(None, *(self.add(part, then) for part in pattern.parts))
        return self._repeat(pattern, then)

    def _repeat(self, repeat: Repeat, then: int) -> int:
        first = then
        copies = repeat.least
        if repeat.most is None:
            first = loop = self._node(None)
            again = self.add(repeat.part, loop)
            self.after[loop] = [again, then]
            if copies and again != loop:
                first = again
                copies = copies - 1
        for _ in range((repeat.most or repeat.least) - repeat.least):
            once = self.add(repeat.part, first)
            if once == first:  # the part is empty
                break
            first = self._node(None, once, then)
        for _ in range(copies):
            once = self.add(repeat.part, first)
            if once == first:
                break
            first = once
        return first

    def closure(self, nodes) -> frozenset[int]:
        """The reading or final nodes that ``nodes`` reach without reading a character."""
        states = []
        seen = set(nodes)
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if self.reads[node] is not None or node == FINAL:
                states.append(node)
                continue
            for later in self.after[node]:
                if later not in seen:
                    seen.add(later)
                    stack.append(later)
        return frozenset(states)


def _subsets(graph: _Graph, start: int, groups: list[list[int]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The deterministic automaton over ``count`` groups of characters.

    Returns its moves [S, M], and whether each state is final [S]. A state is a set of nodes of the
    graph. ``groups[k]`` lists the groups in set k of the graph.
    """
    order = [graph.closure([start])]
    number = {order[0]: 0}
    closures = {}
    rows = []
    steps = 0
    for state in order:  # grows as states are found
        reached = [set() for _ in range(count)]
        for node in state - {FINAL}:
            (then,) = graph.after[node]
            if then not in closures:
                closures[then] = graph.closure([then])
            mark = graph.reads[node]
            assert mark is not None  # a closure holds nodes that read
            read = groups[mark]
            steps += len(read) * len(closures[then])
            for group in read:
                reached[group] |= closures[then]
        row = []
        for nodes in map(frozenset, reached):
            if nodes and nodes not in number:
                number[nodes] = len(order)
                order.append(nodes)
            row.append(number.get(nodes, -1))
        rows.append(row)
        check_limit(steps, "MOST_STEPS", f"{graph.name}: the work on its automaton", "simplify it or repeat less")
        check_limit(len(order), "MOST_STATES", f"{graph.name}: the number of its states", "simplify it or repeat less")
    return np.array(rows, np.int32).reshape(len(rows), count), np.array([FINAL in state for state in order])


def _spell_out(moves: np.ndarray, final: np.ndarray, spelling: Spelling, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The automaton over bytes: that over groups of characters, with states inside characters."""
    rows: list[np.ndarray] = [np.empty(0)] * len(moves)
    inner: dict[bytes, int] = {}

    def begin(after: np.ndarray, missing: int, table: int) -> int:
        """The state where ``missing`` bytes of a character follow; -1 where none can match.

        ``table`` is the row of ``spelling.levels`` for the character's bytes so far.
        """
        known = begun[missing]
        if table not in known:
            targets = spelling.levels[missing - 1][table]
            if missing == 1:
                row = after[targets]
            else:
                row = np.array([begin(after, missing - 1, t) if t >= 0 else -1 for t in targets], np.int32)
            key = row.tobytes()
            if (row >= 0).any() and key not in inner:
                inner[key] = len(rows)
                rows.append(np.pad(row, (0x80, 0x40), constant_values=-1))
            known[table] = inner.get(key, -1)
        return known[table]

    for state, after in enumerate(np.pad(moves, [(0, 0), (0, 1)], constant_values=-1)):  # group -1 leads nowhere
        begun = {1: {}, 2: {}, 3: {}}
        row = np.full(256, -1, np.int32)
        row[:128] = after[spelling.lead[:128]]
        for byte in range(128, 256) if (after[spelling.long] >= 0).any() else ():
            if spelling.lead[byte] >= 0:
                row[byte] = begin(after, int(spelling.missing[byte]), int(spelling.lead[byte]))
        rows[state] = row
        check_limit(len(rows), "MOST_STATES", f"{name}: the number of its states", "simplify it or repeat less")
    return np.stack(rows).astype(np.int32), np.pad(final, (0, len(rows) - len(final)))

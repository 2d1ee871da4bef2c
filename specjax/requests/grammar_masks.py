"""The tokens that the grammars of a batch's rows force and allow, found on the host in each round.

The device calls ``write_forced`` before a round, and ``write_masks`` between its drafts and their
acceptance. The answers depend on the arguments alone. A row keeps its last matcher, which saves
time.
"""

import itertools
import threading
import weakref

import numpy as np

from ..core.logit_adjustments import RowConstraints
from .grammar import Grammar, short_reason

_numbers = itertools.count(1)
_rows: "weakref.WeakValueDictionary[int, RowGrammar]" = weakref.WeakValueDictionary()
"""The rows that are decoded, by their numbers. A row ends with its batch."""

_ALL = np.uint32(0xFFFFFFFF)


class RowGrammar:
    """The grammar of one row, which the device knows by its number.

    Attributes:
      name: the option that gave the grammar, for messages.
      number: the row's number, above 0.
      failure: why no token was possible, or None.
    """

    def __init__(self, grammar: Grammar):
        self.name = grammar.name
        self.number = next(_numbers)
        self.failure: str | None = None
        self._grammar = grammar
        self._matcher = None
        self._consumed = np.zeros(0, np.int32)
        self._lock = threading.Lock()
        _rows[self.number] = self

    def fill(self, text: np.ndarray, nodes: np.ndarray, parent: np.ndarray, masks: np.ndarray) -> None:
        """Writes uint32 ``masks`` [N, W]: one bit for each token that may follow each node.

        A node keeps its bits if its path breaks the grammar or ends the text.

        Args:
          text: int32 [L], the new tokens up to the root.
          nodes, parent: int32 [N], the tree below the root.
        """
        with self._lock:
            self._fill_node(text, masks[0])
            if len(nodes) == 1:
                return
            texts: list[np.ndarray | None] = [text] + [None] * (len(nodes) - 1)
            for i in self._depth_first(parent.tolist()):
                token = int(nodes[i])
                above = texts[parent[i]]
                allowed = masks[parent[i], token >> 5] >> np.uint32(token & 31) & 1
                if above is not None and allowed and token not in self._grammar.end_ids:
                    texts[i] = below = np.append(above, nodes[i])
                    self._fill_node(below, masks[i])

    def forced(self, text: np.ndarray) -> list[int]:
        """The tokens that the grammar forces after ``text`` int32 [L], the new tokens."""
        with self._lock:
            if len(text) and int(text[-1]) in self._grammar.end_ids:
                return []
            matcher = self._go_to(text)
            if matcher.is_error():
                self._matcher = None
                return []
            return matcher.compute_ff_tokens()

    @staticmethod
    def _depth_first(parent: list[int]) -> list[int]:
        """The nodes below the root in the order of a walk in which few steps go back."""
        children: list[list[int]] = [[] for _ in parent]
        for i in range(len(parent) - 1, 0, -1):
            children[parent[i]].append(i)
        order = []
        stack = children[0]
        while stack:
            order.append(stack.pop())
            stack.extend(children[order[-1]])
        return order

    def _fill_node(self, tokens: np.ndarray, mask: np.ndarray) -> None:
        """Writes the tokens allowed after ``tokens`` into ``mask`` [W]; none if that fails."""
        matcher = self._go_to(tokens)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            self.failure = short_reason(matcher.get_error())
            self._matcher = None
            mask[:] = 0

    def _go_to(self, tokens: np.ndarray):
        """The matcher after ``tokens``, which it reaches by few steps back and forward."""
        matcher = self._matcher
        old = self._consumed
        shared = min(len(tokens), len(old))
        same = tokens[:shared].tobytes() == old[:shared].tobytes()
        common = shared if same else int(np.flatnonzero(tokens[:shared] != old[:shared])[0])
        back = len(old) - common
        if matcher is None or (back and not matcher.rollback(back)):
            matcher = self._grammar.start.deep_copy()
            common = 0
        if common < len(tokens):
            matcher.consume_tokens(tokens[common:].tolist())
        self._matcher = matcher
        self._consumed = tokens
        return matcher


def write_masks(asked: np.ndarray, masks: np.ndarray) -> None:
    """Writes uint32 ``masks`` [B, N * W]: one bit for each token that may follow each of N nodes.

    All bits are set in rows without a grammar, and none after a failure of the row's grammar.

    ``asked``: int32 [B, 4 + 2 N + T], for each row the number of its grammar or 0, the lengths of
    its prompt and of its text, N, the tokens and the parents of the tree, and the text.
    """
    for asked_row, masks_row in zip(asked, masks):
        number, prompt_length, length, nodes = asked_row[:4].tolist()
        masks_row[:] = _ALL
        if not number:
            continue
        row = _rows.get(number)
        start = 4 + 2 * nodes
        try:
            text = asked_row[start + prompt_length : start + length].copy()
            tree = asked_row[4 : 4 + nodes], asked_row[4 + nodes : start]
            if row:
                row.fill(text, *tree, masks_row.reshape(nodes, -1))
            else:
                masks_row[:] = 0
        except Exception as error:  # it would end the whole batch, and the program's state
            masks_row[:] = 0
            if row:
                row.failure = short_reason(error)


def write_forced(asked: np.ndarray, forced: np.ndarray) -> None:
    """Writes int32 ``forced`` [B, F], the tokens that the grammars force after each text, then -1.

    ``asked``: int32 [B, 3 + T], as that of ``write_masks`` without a tree.
    """
    forced[:] = -1
    for asked_row, forced_row in zip(asked, forced):
        number, prompt_length, length = asked_row[:3].tolist()
        if not (row := _rows.get(number)):
            continue
        try:
            tokens = row.forced(asked_row[3 + prompt_length : 3 + length].copy())[: len(forced_row)]
            forced_row[: len(tokens)] = tokens
        except Exception:  # ``write_masks`` meets and keeps the failure
            forced_row[:] = -1


def follow_grammars(constraints: RowConstraints) -> RowConstraints:
    """The constraints of rows of which some have grammars."""
    return constraints.replace(write_masks=write_masks, write_forced=write_forced)

"""The tokens that the grammars of a batch's rows force and allow, found on the host in each round.

The device calls ``find_forced`` before a round, and ``find_masks`` between its drafts and their
acceptance. The answers depend on the arguments alone. What a row remembers of its last call saves
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
            texts: list[np.ndarray | None] = [text] + [None] * (len(nodes) - 1)
            self._fill_node(text, masks[0])
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
        shared = min(len(tokens), len(self._consumed))
        differ = np.flatnonzero(tokens[:shared] != self._consumed[:shared])
        common = int(differ[0]) if differ.size else shared
        matcher = self._matcher
        back = len(self._consumed) - common
        if matcher is None or back and not matcher.rollback(back):
            matcher = self._grammar.start.deep_copy()
            common = 0
        matcher.consume_tokens(tokens[common:].tolist())
        self._matcher = matcher
        self._consumed = tokens
        return matcher


def find_masks(nodes: int, words: int, asked) -> np.ndarray:
    """Uint32 [B, nodes, words]: one bit for each token that the grammars allow after each node.

    All bits are set in rows without a grammar, and none after a failure of the row's grammar.

    ``asked``: int32 [B, 3 + 2 nodes + T], for each row the number of its grammar or 0, the lengths
    of its prompt and of its text, the tokens and the parents of the tree, and the text.
    """
    asked = np.asarray(asked)
    masks = np.full((len(asked), nodes, words), _ALL)
    for b in np.flatnonzero(asked[:, 0]):
        number, begin, end = asked[b, :3].tolist()
        tree, parent, text = np.split(asked[b, 3:], [nodes, 2 * nodes])
        row = _rows.get(number)
        if row is None:
            masks[b] = 0
            continue
        try:
            row.fill(text[begin:end].copy(), tree, parent, masks[b])
        except Exception as error:  # it would end the whole batch, and the program's state
            masks[b] = 0
            row.failure = short_reason(error)
    return masks


def find_forced(most: int, asked) -> np.ndarray:
    """Int32 [B, ``most``], the tokens that the grammars force after each text, then -1.

    ``asked``: int32 [B, 3 + T], as that of ``find_masks`` without a tree.
    """
    asked = np.asarray(asked)
    forced = np.full((len(asked), most), -1, np.int32)
    for b in np.flatnonzero(asked[:, 0]):
        number, begin, end = asked[b, :3].tolist()
        row = _rows.get(number)
        try:
            tokens = row.forced(asked[b, 3 + begin : 3 + end].copy())[:most] if row else []
        except Exception:  # ``find_masks`` meets and keeps the failure
            tokens = []
        forced[b, : len(tokens)] = tokens
    return forced


def follow_grammars(constraints: RowConstraints) -> RowConstraints:
    """The constraints of rows of which some have grammars."""
    return constraints.replace(find_masks=find_masks, find_forced=find_forced)

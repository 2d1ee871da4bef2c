"""The constraints of an engine's requests: a table of fixed size on the device, and grammars.

An automaton gets free state numbers of the table, and keeps them while a row has it. So a new
automaton changes nothing for the running rows: the next rounds take another table of the same
shape, in which their states have the same numbers. A grammar needs no room: the host follows it.
"""

import dataclasses
import threading
from collections import OrderedDict

import numpy as np
from jax.sharding import Mesh

from ..core.logit_adjustments import RowConstraints
from ..errors import RequestError
from ..parallel import place
from ..requests.constraint import ENDLESS, Automaton, Constraint
from ..requests.grammar_masks import RowGrammar, follow_grammars
from ..requests.token_table import join_classes, place_tables


@dataclasses.dataclass
class _Place:
    """A constraint's state numbers in the table, int [n], and the number of its rows."""

    numbers: np.ndarray
    rows: int = 0


class Constraints:
    """The table of an engine. Constraints without a row stay in it until others need their room.

    ``prepare`` is for any thread, ``hold`` and ``release`` are for the thread of the engine.

    Args:
      states, classes: the table's numbers of states and of classes of tokens.
      mesh: the devices of the table, of which each has all of it; None for the default device.

    Attributes:
      on_device: the constraints of all rows, for the rounds. Another object replaces it, and its
        arrays never change. It has a table after the first automaton, and asks the host after the
        first grammar.
    """

    def __init__(self, states: int, classes: int, mesh: Mesh | None = None):
        self._shape = (states, classes)
        self._mesh = mesh
        self._places: OrderedDict[Constraint, _Place] = OrderedDict()  # the least recently used first
        self._lock = threading.Lock()
        self._refused = None
        self.on_device = RowConstraints()

    def prepare(self, constraint: Constraint | RowGrammar) -> RowConstraints:
        """Places a constraint of a request that waits, if there is room. Returns ``on_device``."""
        with self._lock:
            self._place(constraint)
            return self.on_device

    def check_size(self, constraint: Constraint | RowGrammar) -> None:
        """Raises RequestError if an empty table has too little room for an automaton."""
        if isinstance(constraint, RowGrammar):
            return
        need = constraint.table.next.shape
        room = (self._shape[0] - 1, self._shape[1])
        if need[0] > room[0] or need[1] > room[1]:
            raise RequestError(
                f"{constraint.name} has {need[0]:,} states and {need[1]:,} classes of tokens, and the engine's table "
                f"{room[0]:,} and {room[1]:,}; simplify it, or raise constraint_states and constraint_classes"
            )

    def hold(self, constraint: Constraint | RowGrammar | None) -> int | None:
        """The state in which a row with this constraint starts; 0 without an automaton.

        None if the constraints of the running rows leave no room. Otherwise the constraint keeps
        its states until ``release``.
        """
        if constraint is None:
            return 0
        with self._lock:
            if constraint is self._refused or not self._place(constraint):
                self._refused = constraint  # until a release; each try takes time
                return None
            if isinstance(constraint, RowGrammar):
                return 0
            place = self._places[constraint]
            place.rows += 1
            return int(place.numbers[0])

    def release(self, constraint: Constraint | RowGrammar | None) -> None:
        """Takes back one ``hold``."""
        if isinstance(constraint, Constraint):
            with self._lock:
                self._places[constraint].rows -= 1
                self._refused = None

    def release_all(self) -> None:
        """Takes back every ``hold``."""
        with self._lock:
            for place in self._places.values():
                place.rows = 0
            self._refused = None

    def _place(self, constraint: Constraint | RowGrammar) -> bool:
        """Whether ``on_device`` has the constraint, which is placed if there is room."""
        if isinstance(constraint, RowGrammar):
            self.on_device = follow_grammars(self.on_device)
            return True
        if constraint in self._places:
            self._places.move_to_end(constraint)
            return True
        (states, classes) = self._shape
        size = len(constraint.table.next)
        places = self._places.copy()
        unused = [other for other, place in places.items() if not place.rows]
        while True:
            columns, class_of = join_classes([each.table for each in (*places, constraint)])
            taken = np.concatenate([[0], *(place.numbers for place in places.values())])
            free = np.setdiff1d(np.arange(states), taken)
            if len(free) >= size and columns.shape[1] <= classes:
                break
            if not unused:
                return False
            del places[unused.pop(0)]
        places[constraint] = _Place(free[:size])
        numbers = [place.numbers for place in places.values()]
        following = place_tables([each.table for each in places], columns, numbers, self._shape)
        shortest = np.zeros(states, np.int32)
        longest = np.full(states, ENDLESS, np.int32)
        for each, number in zip(places, numbers):
            shortest[number] = each.shortest
            longest[number] = each.longest
        table = Automaton(*place((following, np.int32(class_of), shortest, longest), self._mesh, rows=False))
        self.on_device = self.on_device.replace(table=table)
        self._places = places
        return True

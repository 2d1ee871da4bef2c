"""The constraints of an engine's requests, in one table of fixed size on the device.

A constraint gets free state numbers of the table, and keeps them while a row has it. So a new
constraint changes nothing for the running rows: the next rounds take another table of the same
shape, in which their states have the same numbers.
"""

import dataclasses
import threading
from collections import OrderedDict

import numpy as np
from jax.sharding import Mesh

from ..errors import RequestError
from ..parallel import place
from ..requests.constraint import ENDLESS, Automaton, Constraint
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
      table: the automaton of all constraints on the device; None before the first one. Another
        object replaces it, and its arrays never change.
    """

    def __init__(self, states: int, classes: int, mesh: Mesh | None = None):
        self._shape = (states, classes)
        self._mesh = mesh
        self._places: OrderedDict[Constraint, _Place] = OrderedDict()  # the least recently used first
        self._lock = threading.Lock()
        self._refused = None
        self.table: Automaton | None = None

    def prepare(self, constraint: Constraint) -> Automaton:
        """Places a constraint of a request that waits, if there is room. Returns the table."""
        with self._lock:
            self._place(constraint)
            assert self.table is not None  # an empty table has room
            return self.table

    def check_size(self, constraint: Constraint) -> None:
        """Raises RequestError if an empty table has too little room for a constraint."""
        need = constraint.table.next.shape
        room = (self._shape[0] - 1, self._shape[1])
        if need[0] > room[0] or need[1] > room[1]:
            raise RequestError(
                f"{constraint.name} has {need[0]:,} states and {need[1]:,} classes of tokens, and the engine's table "
                f"{room[0]:,} and {room[1]:,}; simplify it, or raise constraint_states and constraint_classes"
            )

    def hold(self, constraint: Constraint | None) -> int | None:
        """The state in which a row with this constraint starts; 0 without a constraint.

        None if the constraints of the running rows leave no room. Otherwise the constraint keeps
        its states until ``release``.
        """
        if constraint is None:
            return 0
        with self._lock:
            if constraint is self._refused or not self._place(constraint):
                self._refused = constraint  # until a release; each try takes time
                return None
            place = self._places[constraint]
            place.rows += 1
            return int(place.numbers[0])

    def release(self, constraint: Constraint | None) -> None:
        """Takes back one ``hold``."""
        if constraint is not None:
            with self._lock:
                self._places[constraint].rows -= 1
                self._refused = None

    def release_all(self) -> None:
        """Takes back every ``hold``."""
        with self._lock:
            for place in self._places.values():
                place.rows = 0
            self._refused = None

    def _place(self, constraint: Constraint) -> bool:
        """Whether the table has the constraint, which is placed if there is room."""
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
        self.table = Automaton(*place((following, np.int32(class_of), shortest, longest), self._mesh, rows=False))
        self._places = places
        return True

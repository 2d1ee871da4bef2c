"""Method auto.

It chooses the drafter and its draft length, or none, for each round by expected tokens over time.

``drafter`` has the method, ``arms`` the kinds of rounds, ``choice`` the choice of an arm by its
value, ``rates`` the acceptance rates, ``times`` the time of a round, ``resting`` the draft that
skips rounds, ``proposal`` its tokens beside looked-up ones, ``state`` the arrays of all of these,
and ``constants`` the tuned numbers.
"""

from .arms import Arm
from .drafter import Auto
from .state import Parameters

__all__ = ["Arm", "Auto", "Parameters"]

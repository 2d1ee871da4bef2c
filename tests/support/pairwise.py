"""Chooses few test settings that still cover every pair of properties."""

import itertools
from collections.abc import Hashable, Mapping


def pairwise_cover(settings: Mapping[Hashable, Mapping[str, Hashable]]) -> list:
    """The names of few settings that have every pair of properties that any of the settings has.

    Most faults need two things to meet, such as a rule and a shape of the tree. So instead of all settings it is enough to
    test a set in which each two properties meet as often as they do in all settings: at least once. Greedy: the next
    setting is the one with most pairs that are not covered yet; of equals, the first. At the end a setting is dropped
    if the others cover its pairs.

    Args:
      settings: by name, the setting's value of each property.
    """
    pairs = {name: set(itertools.combinations(sorted(has.items(), key=repr), 2)) for name, has in settings.items()}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        best = max(settings, key=lambda name: len(pairs[name] & missing))
        chosen.append(best)
        missing -= pairs[best]
    for name in tuple(chosen):
        others = [pairs[other] for other in chosen if other != name]
        if pairs[name] <= set().union(*others):
            chosen.remove(name)
    return chosen

"""The tuned numbers of method auto. ``docs/auto.md`` shows the formulas in which they stand."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Constants:
    """The tuned numbers, each with the reason for its value where one is recorded.

    ``scripts/benchmarks/auto_grid.py`` measures the effect of a change.

    Attributes of arms:
      lookup_lengths: the tokens that the arms with look-ups draft, where no file of measured times
        names arms.
      draft_length: the tokens that the model drafts there.
      tree_levels, tree_nodes: the tree on devices where scoring many nodes costs little.

    Attributes of the choice:
      margin, margin_of_rows: the factors by which drafts must be better than plain decoding: the
        best of several estimates is too high. The second is for several rows. If they end together,
        the last of them is behind their mean. If others take their places, the rates of new rows
        are guesses.
      evenness: the power of a row's share of the longest rest of a text, which weights the row's
        tokens where the batch ends with its last row.
      near: the part of the best value from which on an arm is near to paying.
      reading, reading_of_rows: the time in which the model reads a token of skipped rounds, in
        steps of drafting, for one row and for several. Measured with the embedded pair on a CPU:
        the model reads many tokens at once, and a step of a single row spends most of its time on
        other things.
      stays: the rounds over which a choice of the model spreads the time of that reading. The model
        is likely to be chosen again.
      repeats_after, repeated: after so many rounds in which no draft came near to paying, a choice
        of plain decoding holds for so many rounds. The choice costs 2 % of a plain round of 16
        rows.

    Attributes of acceptance rates:
      longest_match: the longest match that is looked up. A match of each length has a rate of its
        own.
      model_tests, other_tests: the tests that the model's rate before the first round counts as
        much as, and each other rate. With fewer, one bad round at the beginning ends the use of the
        model for fifteen rounds.
      others: the rate before the first round at which a tree's other tokens are accepted where the
        likeliest is not.
      optimism: the part of a standard deviation by which the model's rate is taken to be higher
        than its estimate. Only use tests the model, so a few bad rounds would else end its use.
      idle_memory: the factor by which a round without the model reduces the weight of its rate.

    Attributes of earlier requests:
      first_rate, first_tests: the model's rate before the first request, and the tests that it
        counts as much as.
      most_tests: the tests that all earlier requests count as much as. The newest ones weigh most.

    Attributes of trees, see ``Calibration``:
      calibration_tokens: the tokens of each row and arm before the first round, all of them
        emitted.
      calibration_memory: the factor by which a round of an arm reduces the weight of its earlier
        rounds.
      forgiven: the part of an arm's missing tokens that a round of another arm forgives.

    Attributes of probes, see ``Probing``:
      probe_budget: the share of the time that the first level of probing may cost.
      most_level: the highest level of probing.
      fast, slow: the memories of the two running means of the target's confidence.
      jump: a difference between the means that counts as a change of the text. The probabilities of
        a text without a change spread by about 0.3, so the difference spreads by 0.08.
      changed_level: the level of probing after a change of the text.
      chance: the chance that the acceptance rate is a standard deviation above its estimate, by the
        normal distribution.
      least_extra: the least time that a probe is taken to lose, in rounds of the best arm.

    Attributes of times, see ``Times``:
      predicted_rounds, measured_rounds: the rounds of an arm whose times count as much as a
        predicted and as a measured table.
      most_rounds: the most rounds of a run that count as measurements of an arm: they share the
        machine's speed.
      scale_memory: the factor by which each round draws a scale, in logarithms, back to 1.
      speed, least_speed: the parts of an error by which a plain round, and any round, corrects the
        machine's speed. A machine may be half as fast for a minute.
      cpu_token, other_token: the time that a scored token adds to a round of plain decoding at
        batch 1, on a CPU and on other devices.

    Attributes of heads:
      waiting: the most pairs that wait for the head at the beginning of a round.
    """

    lookup_lengths: tuple[int, ...] = (4, 12)
    draft_length: int = 4
    tree_levels: int = 5
    tree_nodes: int = 24

    margin: float = 1.05
    margin_of_rows: float = 1.15
    evenness: int = 32
    near: float = 0.95
    reading: float = 1 / 10
    reading_of_rows: float = 1 / 4
    stays: int = 4
    repeats_after: int = 16
    repeated: int = 4

    longest_match: int = 6
    model_tests: float = 8.0
    other_tests: float = 2.0
    others: float = 0.5
    optimism: float = 0.5
    idle_memory: float = 0.98

    first_rate: float = 0.7
    first_tests: float = 64.0
    most_tests: float = 1024.0

    calibration_tokens: float = 16.0
    calibration_memory: float = 0.97
    forgiven: float = 0.01

    probe_budget: float = 0.02
    most_level: int = 16
    fast: float = 0.9
    slow: float = 0.98
    jump: float = 0.25
    changed_level: float = 0.25
    chance: float = 1 / 6
    least_extra: float = 0.05

    predicted_rounds: float = 5.0
    measured_rounds: float = 50.0
    most_rounds: int = 8
    scale_memory: float = 0.999
    speed: float = 0.1
    least_speed: float = 0.01
    cpu_token: float = 1 / 12
    other_token: float = 1 / 200

    waiting: int = 32


CONSTANTS = Constants()
"""The numbers that method auto uses."""

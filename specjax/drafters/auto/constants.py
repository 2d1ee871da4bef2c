"""The tuned numbers of method auto. ``docs/auto.md`` shows the formulas in which they stand.

Each term was switched off alone, in modelled time: a round of a choice takes the time that
``tune --auto`` measured for it once. There were 24 cells: four kinds of text, temperature 0 and 1,
batch 1, 4 and 16, 32 seeded texts of 128 tokens, the embedded pair (AMD EPYC with AVX-512, 2 cores,
jax 0.10.2, 2026-11-29). With all terms the mean over plain decoding was 1.320 and the lowest cell
0.973. Terms that brought nothing were then removed, and the two became 1.334 and 0.986. The others,
with the mean and the lowest cell without them: reading time -1.2 %, 0.935; evenness -1.4 %, 0.907;
margin of several rows -0.2 %, 0.965; held choices -0.5 %, 0.973; a rate for each match -1.4 %,
0.987; optimism -0.8 %, 0.987. These cells have no trees.
"""

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
      margin_of_rows: the factor by which drafts must be better than plain decoding in a batch of
        several rows. The last of them is behind their mean, or the rates of new rows are guesses.
      evenness: the power of a row's share of the longest rest of a text, which weights the row's
        tokens where the batch ends with its last row.
      reading: the time in which the model reads a token of skipped rounds, many at once, in steps
        of drafting.
      stays: the part of the rounds to come that share the time of that reading.
      near: the part of the best value from which on an arm is near to paying.
      repeated: after so many rounds without an arm near to paying, a choice of plain decoding holds
        for so many rounds. The choice costs 2 % of a plain round of 16 rows.

    Attributes of acceptance rates, see ``rates``:
      longest_match: the longest match that is looked up. A match of each length has a rate of its
        own.
      first_rate: the model's rate before the first round.
      others: the rate before the first tree at which its other tokens are accepted where the
        likeliest is not.
      model_tests, other_tests: the tests that the first rate of the model's chains counts as much
        as, and each other first rate. With fewer, one bad round ends the use of the model.
      optimism: the part of a standard deviation by which the model's rate is taken to be higher
        than its estimate. Only use tests the model, so a few bad rounds would else end its use.
      idle_memory: the factor by which a round without the model reduces the weight of its tests. So
        a model that has lost is tried again after about a hundred rounds.

    Attributes of times, see ``Times``:
      predicted_rounds, measured_rounds: the rounds of an arm whose times count as much as a
        predicted and as a measured table.
      most_rounds: the most rounds of a run, which share the machine's speed, that measure an arm.
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

    margin_of_rows: float = 1.1
    evenness: int = 32
    reading: float = 1 / 4
    stays: float = 1 / 4
    near: float = 0.95
    repeated: int = 4

    longest_match: int = 6
    first_rate: float = 0.6
    others: float = 0.5
    model_tests: float = 6.0
    other_tests: float = 2.0
    optimism: float = 0.5
    idle_memory: float = 0.99

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

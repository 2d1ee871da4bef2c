"""The rounds of a step and the size of a chunk beside a clock that the test sets."""

import pytest

from specjax import Engine, Generator
from specjax.engine.step_size import StepSize


def read(pace: StepSize, seconds, chunks: int = 30) -> list[int]:
    """The sizes of chunks beside running rows; one of n tokens takes ``seconds(n)``."""
    sizes = []
    for _ in range(chunks):
        pace.add_rounds(1, 1.0)
        sizes.append(pace.size(running=True))
        pace.add_chunk(sizes[-1], seconds(sizes[-1]))
    return sizes


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        (lambda n: 3.3 * n / 128, 64),  # proportional to the tokens
        (lambda n: 1.0, 128),  # a device that waits for its memory
        (lambda n: 0.5 + n / 32, 32),
        (lambda n: 5.0, 16),
    ],
)
def test_the_size_is_the_largest_whose_time_is_within_the_bound(seconds, size):
    pace = StepSize(16, 128, ratio=2.0)
    sizes = read(pace, seconds)
    assert sizes[0] == 16 and set(sizes[10:]) == {size}
    assert all(seconds(n) <= 2.0 or n == 16 for n in sizes)
    assert pace.size(running=False) == 128


def test_a_chunk_takes_at_most_nine_tenths_of_the_rounds_by_default():
    """A chunk of 128 tokens would take 0.92 and 0.88 times as long as the rounds."""
    assert read(StepSize(16, 128), lambda n: n / 139)[-1] == 64
    assert read(StepSize(16, 128), lambda n: n / 145)[-1] == 128


def test_many_unread_requests_get_as_much_more_of_a_step_than_few_rows():
    """Seven requests beside two rows: chunks of 0.5 s up to 3.5 times a round of a second."""
    pace = StepSize(16, 128)
    read(pace, lambda n: n / 256)
    for unread, running, chunks in ((7, 2, 7), (1, 2, 1), (0, 5, 1)):
        pace.share(unread, running)
        assert [n for n in range(1, 20) if pace.has_room(n, 0.5 * n)] == list(range(1, chunks))


def test_the_size_shrinks_before_the_first_chunk_beside_fewer_rounds():
    """A chunk of 64 tokens takes 17 ms, beside three rounds of 7.5 ms and then two of 8.3."""
    pace = StepSize(16, 128, 1, 8, pause=0)
    for _ in range(30):
        pace.add_rounds(pace.rounds, pace.rounds * 0.0075)
        pace.add_chunk(pace.size(running=True), pace.size(running=True) * 0.017 / 64)
    assert pace.rounds == 3 and pace.size(running=True) == 64
    for _ in range(20):
        pace.add_rounds(pace.rounds, pace.rounds * 0.0083)
    assert pace.rounds == 2 and pace.size(running=True) == 32


def test_the_size_follows_the_device_and_ignores_other_chunks():
    pace = StepSize(16, 128, ratio=2.0)
    read(pace, lambda n: n / 128)
    pace.add_chunk(16, 99.0)  # the end of a prompt
    assert pace.size(running=True) == 128
    assert read(pace, lambda n: n / 20)[-1] == 32
    assert read(pace, lambda n: n / 128)[-1] == 128
    pace.add_chunk(128, 9.0)
    assert read(pace, lambda n: n / 128)[-1] == 128


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(0.001, 8), (0.0045, 4), (0.0075, 3), (0.0083, 2), (0.014, 1), (0.5, 1)]
)
def test_a_step_has_the_rounds_that_come_nearest_to_20_ms(seconds, rounds):
    pace = StepSize(16, 128, 1, 8)
    assert pace.rounds == 1  # before the first time
    pace.add_rounds(4, 4 * seconds)
    assert pace.rounds == rounds
    assert StepSize(16, 128, 3, 3).rounds == 3  # a number that the user gave


def test_a_chunk_is_compared_with_all_rounds_of_a_step():
    """A round of 5 ms: four fit a step. A chunk of 64 tokens takes 35 ms, which is within twice their 20 ms."""
    for most_rounds, size in ((8, 64), (1, 16)):
        pace = StepSize(16, 128, 1, most_rounds, ratio=2.0, pause=0)
        for _ in range(30):
            pace.add_rounds(pace.rounds, pace.rounds * 0.005)
            pace.add_chunk(pace.size(running=True), pace.size(running=True) * 0.035 / 64)
        assert pace.size(running=True) == size


def test_running_rows_may_always_wait_a_tenth_of_a_second():
    """A round of 5 ms: a chunk of 64 tokens takes 60 ms, and two of 32 tokens take as long."""
    pace = StepSize(16, 128, 1, 8)
    for _ in range(30):
        pace.add_rounds(pace.rounds, pace.rounds * 0.005)
        pace.add_chunk(pace.size(running=True), pace.size(running=True) * 0.06 / 64)
    assert pace.size(running=True) == 64
    assert pace.has_room(1, 0.03) and pace.has_room(2, 0.06) and not pace.has_room(3, 0.09)
    assert not pace.has_room(1, 0.06) and pace.has_room(1, 0.06, left=40) and not pace.has_room(1, 0.06, left=100)


def test_a_step_reads_short_prompts_as_long_as_rows_may_wait():
    """Four rounds of 5 ms: running rows wait 18 ms, for three chunks of 5.9 ms, two of 8.9 ms, or one of any time."""
    pace = StepSize(16, 128, 1, 8, pause=0)
    assert not pace.has_room(1, 0.001)  # no round has been timed
    pace.add_rounds(4, 0.020)
    for seconds, most in ((0.0059, 3), (0.0089, 2), (0.0095, 1), (0.5, 1)):
        chunks = 1
        while pace.has_room(chunks, chunks * seconds):
            chunks += 1
        assert chunks == most
    fixed = StepSize(32, 32, 1, 8)  # chunks of a size that the user gave
    fixed.add_rounds(4, 0.020)
    assert not fixed.has_room(1, 0.001)


def test_the_last_chunks_have_few_void_tokens_where_these_take_time(target, monkeypatch):
    """On a CPU 72 tokens are two chunks, and on a device that waits for its memory they are one."""
    engine, prompt = Engine(target, "none", slots=1, capacity=256, prefix_bytes=0), [5, 6, 7, 8] * 50
    sizes, read = [], engine.programs.read
    monkeypatch.setattr(engine.programs, "read", lambda *given: sizes.append(given[-1]) or read(*given))
    results = []
    for void_costs in (True, False):
        engine.programs._void_costs = void_costs
        results.append(engine.submit(prompt, max_new_tokens=9).result().token_ids)
    assert sizes == [128, 64, 16, 128, 128]
    assert results == [Generator(target, "none")(prompt, max_new_tokens=9).token_ids] * 2

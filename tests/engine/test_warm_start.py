"""An engine that answers while its programs are compiled."""

import threading

import pytest
from support.engine import count_waits, facts
from support.one_layer import draft, target
from support.program import count_compilations

from specjax import Engine, Generator
from specjax.engine import WarmStart
from specjax.engine.prompt_programs import LEAST_CHUNK

GREEDY = dict(max_new_tokens=24, ignore_eos=True)
SEEDED = GREEDY | dict(temperature=0.8, seed=5)
PROMPT = [5, 6, 7, 8] * 4
LONG = [5, 6, 7, 8] * (LEAST_CHUNK // 2)
METHODS = {"draft_model": False, "ngram": True, "auto": True}
"""Whether the text of a row with a seed is that of plain decoding."""


AUTO = pytest.param("auto", marks=pytest.mark.slow)


def without_grammars(warm: WarmStart) -> None:
    """Leaves the rounds of constrained rows out, which take most of the time."""
    warm.waiting = [program for program in warm.waiting if program[0] != "grammar"]


@pytest.fixture
def started(request, target, draft, monkeypatch):
    """A started engine whose compiler waits for an event, the event, and a Generator of the same method."""
    draft = None if request.param == "ngram" else draft
    engine = Engine(target, request.param, draft, slots=3, widths=[1], capacity=256)
    gate = threading.Event()
    for name in ("compile_rounds", "compile_chunk"):
        compile_now = getattr(engine.programs, name)
        monkeypatch.setattr(engine.programs, name, lambda *args, now=compile_now: (gate.wait(300), now(*args)))
    lines = []
    with engine:
        warm = WarmStart(engine, lines.append)
        warm.begin()
        warm.go_on()
        yield engine, warm, gate, Generator(target, request.param, draft, capacity=256), lines
        gate.set()
        warm.end()


def answers(engine: Engine, *requests) -> list:
    return [handle.result() for handle in [engine.submit(prompt, **options) for prompt, options in requests]]


DRAFT_MODEL = pytest.param("draft_model", marks=pytest.mark.slow)


@pytest.mark.parametrize("started", ["ngram", DRAFT_MODEL, AUTO], indirect=True)
def test_texts_before_and_after_the_methods_programs_are_compiled(started, monkeypatch):
    """After that a schema compiles nothing, and few rows take narrow rounds."""
    engine, warm, gate, generator, lines = started
    requests = [(PROMPT, GREEDY), (LONG, GREEDY), *[(PROMPT, SEEDED)] * METHODS[generator.method]]
    expected = [generator(prompt, **options) for prompt, options in requests]
    assert warm.waiting[0] == ("rounds", 1) and not lines
    early = answers(engine, *requests)
    assert [r.token_ids for r in early] == [r.token_ids for r in expected]
    assert all(r.stats.drafted == 0 for r in early)  # the rounds were plain
    gate.set()
    warm.wait()
    assert not warm.waiting and lines[0].startswith("compiled rounds of 1 text in ")
    late = answers(engine, *requests)
    assert [facts(r)[:2] for r in late] == [facts(r)[:2] for r in expected]
    assert any(r.stats.drafted for r in late)
    assert count_compilations(lambda: answers(engine, *requests)) == 0
    options = dict(json_schema={"enum": ["AB", "ABCD", 12]}, max_new_tokens=30)
    expected = generator(PROMPT, **options).text
    widths = []
    advance = engine.programs._advance_some
    watch = lambda kind, rounds, some, constraints: (
        widths.append(len(some)),
        advance(kind, rounds, some, constraints),
    )[1]
    monkeypatch.setattr(engine.programs, "_advance_some", watch)
    results = []
    assert count_compilations(lambda: results.extend(answers(engine, (PROMPT, options)))) == 0
    assert results[0].text == expected and set(widths) == {1}
    assert [r.text for r in answers(engine, *[(PROMPT, options)] * 3)] == [expected] * 3


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_rows_with_a_seed_rest_where_their_text_is_that_of_plain_decoding(target, draft, method):
    """While the method's rounds are not ready; the next test decodes."""
    programs = Engine(target, method, draft if method == "draft_model" else None, slots=3, capacity=256).programs
    programs.ready = {("chunk", LEAST_CHUNK), ("plain", 3)}
    chosen = [programs._choose_rounds(1, seeded, None) for seeded in (False, True)]
    assert chosen == [("plain", 3), ("plain" if METHODS[method] else "rounds", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("started", ["draft_model", "auto"], indirect=True)
def test_a_seed_gives_the_same_text_at_any_time(started):
    """Where the text with a seed is not that of plain decoding, the method's rounds are compiled at once."""
    engine, warm, gate, generator, _ = started
    expected = generator(PROMPT, **SEEDED).token_ids
    (early,) = answers(engine, (PROMPT, SEEDED))
    assert early.token_ids == expected
    assert (early.stats.drafted == 0) is METHODS[generator.method]
    warm.waiting = warm.waiting[:1]  # the method's rounds
    gate.set()
    warm.wait()
    assert answers(engine, (PROMPT, SEEDED))[0].token_ids == expected


def count_late_compilations(engine: Engine, use) -> int:
    """The compilations of ``use()`` in an engine whose programs were compiled ahead."""
    with engine:
        warm = WarmStart(engine)
        warm.begin()
        without_grammars(warm)
        warm.go_on()
        warm.wait()
        return count_compilations(use)


@pytest.mark.parametrize("method", ["ngram", pytest.param("lookahead", marks=pytest.mark.slow)])
def test_prompts_of_all_lengths_compile_nothing(target, method):
    """Lookahead makes its state of the whole prompt, when a row gets its slot."""
    engine = Engine(target, method, slots=3, capacity=256)
    lengths = [20, 40, 75, 200, 200]  # the last one finds the beginning of the one before
    results = []
    requests = [([7 + n % 9] * n, GREEDY) for n in lengths]
    assert count_late_compilations(engine, lambda: results.extend(answers(engine, *requests))) == 0
    assert results[-1].stats.cached_tokens > 128


@pytest.mark.parametrize(
    ("rule", "widths"),
    [("auto", []), *(pytest.param(rule, [1], marks=pytest.mark.slow) for rule in ("auto", "typical"))],
)
def test_rows_that_wait_for_memory_compile_nothing(target, draft, rule, widths):
    """Neither the first row that gives up its blocks nor its way back, nor the copy of a part of a block."""
    setting = dict(method="draft_model", draft=draft, rule=rule)
    engine = Engine(target, **setting, slots=3, widths=widths, capacity=256, blocks=5)
    requests = [([i, *LONG * 2], dict(max_new_tokens=130, ignore_eos=True)) for i in (1, 1, 3)]
    waits, results = count_waits(engine), []
    assert count_late_compilations(engine, lambda: results.extend(answers(engine, *requests))) == 0
    assert len(waits) > 1 and results[1].stats.cached_tokens == 3 * LEAST_CHUNK
    alone = Generator(target, **setting, capacity=256)
    assert [facts(r) for r in results] == [facts(alone(prompt, **options)) for prompt, options in requests]


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("ngram", "auto"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("draft_model", "auto"), ("ngram", "typical")]),
    ],
)
def test_prompts_that_are_read_together_compile_nothing(target, draft, monkeypatch, method, rule):
    setting = dict(method=method, draft=draft if method == "draft_model" else None, rule=rule)
    engine, counts, results = Engine(target, **setting, slots=8, capacity=256, blocks=40, prompts_together=4), set(), []
    read = engine.programs.read
    monkeypatch.setattr(engine.programs, "read", lambda parts, size: counts.add(len(parts)) or read(parts, size))

    def ask(*prompts: list[int]):
        with engine._stepping:  # all of them come at once
            handles = [engine.submit(prompt, **GREEDY) for prompt in prompts]
        results.extend(handle.result() for handle in handles)

    prompts = [[i, *LONG[: 20 + i]] for i in range(1, 9)], [[9, *LONG, *LONG], [10, *LONG, *LONG]]
    assert count_late_compilations(engine, lambda: [ask(*some) for some in prompts]) == 0
    assert counts >= {2, 4}
    alone = Generator(target, **setting, capacity=256)
    assert [facts(r) for r in results] == [facts(alone(prompt, **GREEDY)) for prompt in sum(prompts, [])]


def test_a_lossy_rule_never_rests(target):
    engine = Engine(target, "ngram", rule="typical", slots=2, capacity=256)
    with engine:
        warm = WarmStart(engine)
        warm.begin()
    assert not warm.waiting and engine.programs.ready is None

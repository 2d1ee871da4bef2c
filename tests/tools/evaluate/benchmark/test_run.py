"""Runs: the answers are those of plain decoding, and an interrupted run ends like one that was not."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from specjax import RequestError
from specjax.tools.evaluate.benchmark.runner import Asker, Timed, lengths_of_rounds
from specjax.tools.evaluate.suites import Question

from .conftest import MAX_NEW_TOKENS, METHODS, QUESTIONS


def deterministic(run) -> dict:
    """Everything of a run's answers that no clock decides."""
    names = (
        "text",
        "token_ids",
        "retokenised",
        "prompt_tokens",
        "target_calls",
        "drafted",
        "accept_lengths",
        "accepted_at",
    )
    return {
        (method, id): [[getattr(turn, name) for name in names] for turn in answer.turns]
        for method, found in run.answers.items()
        for id, answer in found.items()
    }  # fmt: skip


def test_all_methods_answer_with_the_text_of_plain_decoding(finished, made):
    run, plain = finished[0], made["none"]
    for question in QUESTIONS:
        prompt, turns = "", [run.answers[method][question.id].turns for method in METHODS]
        assert len(turns[0]) == len(turns[1]) == len(question.turns)
        for text, *answers in zip(question.turns, *turns):
            prompt += "\n" * bool(prompt) + text
            expected = plain(prompt, max_new_tokens=MAX_NEW_TOKENS)
            prompt += expected.text
            assert [each.token_ids for each in answers] == [expected.token_ids] * 2
            assert all(each.prompt_tokens == len(expected.prompt_token_ids) for each in answers)
            assert all(each.text == expected.text.strip() and each.difference is None for each in answers)


def test_rounds_add_up_to_calls_and_tokens(finished):
    for method, answers in finished[0].answers.items():
        for turn in [turn for answer in answers.values() for turn in answer.turns]:
            assert len(turn.accept_lengths) == turn.target_calls
            assert sum(turn.accept_lengths) == len(turn.token_ids)
            assert len(turn.token_ids) - turn.target_calls <= sum(turn.accepted_at) <= len(turn.token_ids)
            assert 0 < turn.first_token_seconds <= turn.prefill_seconds + turn.decode_seconds
            if method == "none":
                assert set(turn.accept_lengths) == {1}
    drafted = [turn for answer in finished[0].answers["draft_model"].values() for turn in answer.turns]
    assert max(max(turn.accept_lengths) for turn in drafted) > 1


@pytest.mark.parametrize(
    "from_draft, lengths",
    [([False, False], [1, 1]), ([True, True, False, False], [3, 1]), ([False, True], [1, 1]), ([True, True], [2]), ([], [])],
)  # fmt: skip
def test_a_round_ends_with_the_targets_token_or_with_the_text(from_draft, lengths):
    assert lengths_of_rounds(from_draft) == lengths


def test_information_is_minus_log_p_under_the_target(finished, model, made):
    """p comes from one forward over the whole text, without a cache."""
    question = QUESTIONS[1]
    drafted = made["draft_model"](question.turns[0], max_new_tokens=MAX_NEW_TOKENS)
    ids, new = [*drafted.prompt_token_ids, *drafted.token_ids], len(drafted.token_ids)
    mask = jnp.tril(jnp.ones((len(ids), len(ids)), bool))
    forward = jax.jit(lambda model, ids: model.logits(model(ids, jnp.arange(ids.size)[None], mask).hidden)[0])
    logprobs = log_softmax(np.asarray(forward(model.model, jnp.asarray([ids])), np.float64), axis=-1)
    terms = -logprobs[np.arange(-new - 1, -1), ids[-new:]]
    for method in METHODS:
        turn = finished[0].answers[method][question.id].turns[0]
        assert turn.information == pytest.approx(terms.sum(), rel=1e-4)
        accepted = terms @ np.array(drafted.from_draft) if method == "draft_model" else 0
        assert turn.accepted_information == pytest.approx(accepted, rel=1e-4)


def test_killed_twice_it_resumes_to_the_same_answers(finished, answer, tmp_path):
    def stop_after(n):
        def progress(done, of):
            if done == n:
                raise KeyboardInterrupt

        return progress

    directory = tmp_path / "output"
    with pytest.raises(KeyboardInterrupt):
        answer(directory, progress=stop_after(2))
    whole = (directory / "none.jsonl").read_text()
    third = (finished[1] / "none.jsonl").read_text().splitlines(keepends=True)[2]
    (directory / "none.jsonl").write_text(whole + third)  # killed between the lines of two methods
    (directory / "draft_model.jsonl").open("a").write(third[:50])  # and within a line
    with pytest.raises(KeyboardInterrupt):
        answer(directory, progress=stop_after(4))
    run = answer(directory)
    assert run.resumed == 4
    assert deterministic(run) == deterministic(finished[0])
    for method in METHODS:
        ids = [json.loads(line)["question_id"] for line in (directory / f"{method}.jsonl").read_text().splitlines()]
        assert ids == [question.id for question in QUESTIONS]


def test_a_finished_run_answers_nothing_anew(finished, answer, monkeypatch):
    monkeypatch.setattr(Asker, "ask", None)
    before = {file.name: file.read_bytes() for file in finished[1].iterdir()}
    run = answer(finished[1])
    assert run.resumed == 5
    assert run.answers == finished[0].answers
    assert {file.name: file.read_bytes() for file in finished[1].iterdir()} == before


OTHER = {
    "max_new_tokens": (dict(max_new_tokens=13), "has an evaluation with max_new_tokens 12, not 13"),
    "seed": (dict(seed=3), "has an evaluation with seed 0, not 3"),
    "fewer questions": (dict(questions=QUESTIONS[:2]), "has an evaluation with questions 5, not 2"),
    "another text": (
        dict(questions=[*QUESTIONS[:4], Question(5, "rag", "rag", ("X",))]),
        "has an evaluation with checksum",
    ),
}


@pytest.mark.parametrize("kind", OTHER)
def test_other_settings_are_refused_and_nothing_is_written_over(kind, finished, answer):
    options, words = OTHER[kind]
    before = {file.name: file.read_bytes() for file in finished[1].iterdir()}
    with pytest.raises(RequestError, match=words):
        answer(finished[1], **options)
    assert {file.name: file.read_bytes() for file in finished[1].iterdir()} == before


def test_a_directory_with_other_files_is_refused(answer, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="exists and holds no evaluation; name a new directory"):
        answer(tmp_path)
    with pytest.raises(RequestError, match="exists and holds no evaluation"):
        answer(tmp_path / "notes.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_answer_file_is_named_with_its_line(finished, answer, tmp_path):
    directory = tmp_path / "output"
    directory.mkdir()
    for file in finished[1].iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    lines = (directory / "none.jsonl").read_text().splitlines(keepends=True)
    (directory / "none.jsonl").write_text("".join([lines[0], '{"question_id": 2}\n', *lines[2:]]))
    with pytest.raises(RequestError, match="none.jsonl, line 2: no answer of specjax evaluate"):
        answer(directory)


@pytest.mark.slow
def test_questions_and_turns_without_room_are_left_out(answer, tmp_path):
    questions = [
        Question("long", "qa", "qa", ("A" * 250,)),
        Question("half", "writing", "mt_bench", ("B" * 200, "C" * 40)),
        Question("short", "qa", "qa", ("D",)),
    ]
    run = answer(tmp_path / "output", questions)
    assert run.left_out == ["long"]
    assert {id: len(found.turns) for id, found in run.answers["draft_model"].items()} == {"half": 1, "short": 1}
    with pytest.raises(RequestError, match="every question and 12 new tokens exceed the model's context of 256"):
        answer(tmp_path / "other", questions[:1])


@pytest.fixture
def order_of(model, monkeypatch):
    """The order in which methods write whole answers to some questions. Prompts of the sizes ``warm`` are compiled."""
    order = []

    def time(self, generator, prompt):
        order.append(generator)
        return Timed(type("Result", (), {"text": "!"}), 0.0, None)

    monkeypatch.setattr(Asker, "_time", time)
    monkeypatch.setattr(Asker, "_turn", lambda *args: None)

    def ask(questions, warm):
        asker = Asker(model, False, 4, 200, dict(temperature=0.0), warm=warm)
        for number, question in enumerate(questions):
            asker.ask({name: name for name in ("none", "a", "b")}, question, number)
        return order

    return ask


def test_methods_take_turns_to_be_first(order_of):
    assert order_of(QUESTIONS[:2], set(range(9))) == ["none", "a", "b", "a", "b", "none", "a", "b", "none"]


def test_methods_write_an_answer_before_the_first_timed_answer_of_a_size(order_of):
    questions = [Question(i, "qa", "qa", ("D" * size,)) for i, size in enumerate((20, 30, 70))]
    first, second, third = ["none", "a", "b"], ["a", "b", "none"], ["b", "none", "a"]
    assert order_of(questions, set()) == [*"none a b".split(), *first, *second, *"none a b".split(), *third]


def test_sampled_answers_have_the_seeds_text_and_are_not_compared(answer, made, tmp_path):
    run = answer(tmp_path / "output", QUESTIONS[:2], temperature=0.8, seed=7)
    turn = run.answers["none"][2].turns[0]
    expected = made["none"](QUESTIONS[1].turns[0], max_new_tokens=MAX_NEW_TOKENS, temperature=0.8, seed=7)
    assert turn.token_ids == expected.token_ids
    assert all(turn.difference is None for found in run.answers["draft_model"].values() for turn in found.turns)

"""Questions and answers of a boost: their prompts, filters and files, against plain generators and by hand."""

import json

import pytest
from support.chat import CHATML, chat_tokenizer
from support.models import tiny_model

from specjax import Engine, Generator, LanguageModel, RequestError
from specjax.requests.chat import render_chat
from specjax.tools.boost.ordered import write_in_order
from specjax.tools.boost.prompts import find_prompts
from specjax.tools.boost.questions import is_good, share_of_new, write_questions
from specjax.tools.boost.texts import TEMPERATURES, Asking, gather


@pytest.fixture(scope="module")
def writer() -> LanguageModel:
    """A random target that speaks ChatML in bytes."""
    tokenizer = chat_tokenizer(CHATML)
    model = tiny_model(3, vocab_size=len(tokenizer), eos_token_ids=(tokenizer.eos_token_id,))
    return LanguageModel(model, model.config, tokenizer, "writer")


@pytest.fixture(scope="module")
def engine(writer) -> Engine:
    return Engine(writer, "none", slots=4, capacity=128)


@pytest.fixture(scope="module")
def narrow_engine(target) -> Engine:
    return Engine(target, "none", slots=2, capacity=64)


def test_results_come_in_order_and_are_those_of_a_generator(target, narrow_engine):
    prompts = [[5 + i, 7] for i in range(9)]
    lengths = [12, 2, 9, 1, 3, 2, 2, 11, 1]
    requests = [dict(prompt=p, max_new_tokens=n, ignore_eos=True) for p, n in zip(prompts, lengths)]
    results = list(write_in_order(narrow_engine, requests))
    plain = Generator(target, "none")
    expected = [plain(p, max_new_tokens=n, ignore_eos=True).token_ids for p, n in zip(prompts, lengths)]
    assert [result.token_ids for result in results] == expected


def test_a_caller_that_stops_early_leaves_an_idle_engine(narrow_engine):
    endless = (dict(prompt=[3, i % 50], max_new_tokens=4, ignore_eos=True) for i in range(10**9))
    texts = write_in_order(narrow_engine, endless)
    assert len([next(texts) for _ in range(3)]) == 3
    texts.close()
    assert not narrow_engine.has_work


def test_questions_continue_the_users_turn(writer, engine, monkeypatch):
    seen = []
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda **request: seen.append(request) or submit(**request))
    questions = write_questions(engine, seed=0)
    next(questions)
    questions.close()
    texts = [writer.tokenizer.decode(request["prompt"]) for request in seen]
    assert texts[0] == "<|im_start|>user\n"
    assert texts[1].startswith("<|im_start|>system\n") and texts[1].endswith("<|im_end|>\n<|im_start|>user\n")


def test_questions_of_a_number_do_not_depend_on_the_start(engine):
    def take(start: int, count: int) -> dict:
        return dict(pair for pair, _ in zip(write_questions(engine, 5, start), range(count)))

    whole = take(0, 8)
    assert take(3, 5) == {number: whole[number] for number in range(3, 8)}


def test_filters_of_questions():
    assert is_good("How do I bake a loaf of bread?")
    assert not is_good("Hi there")
    assert not is_good("a b c a b c a b c a b c a b c")
    assert share_of_new("a b c d") == 1.0
    assert share_of_new("x y z x y z") == 3 / 4  # xyz, yzx, zxy, xyz


def _texts(files) -> tuple[str, str]:
    return files.training.read_text(), files.held_out.read_text()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("specjax.tools.boost.texts._BLOCK", 8)
    monkeypatch.setattr("specjax.tools.boost.texts._LEAST_NEW", 0.0)


def test_an_interrupted_gathering_ends_with_the_same_files(engine, tmp_path, small_blocks):
    asking = Asking([[40 + i, 50, 60] for i in range(48)], chat=False, longest=6, held_out=13)
    whole = gather(engine, tmp_path / "whole", asking, 10**6)
    gather(engine, tmp_path / "cut", asking, 10**6, goes_on=iter([True, True, False]).__next__)
    with (tmp_path / "cut" / "training.jsonl").open("a") as file:
        file.write('{"number": 17, "te')  # a block that was being written
    resumed = gather(engine, tmp_path / "cut", asking, 10**6)
    assert _texts(resumed) == _texts(whole)
    assert resumed.gathered == whole.gathered
    assert whole.gathered.prompts == 48


def test_questions_are_written_for_several_blocks_at_once(engine, tmp_path, small_blocks, monkeypatch):
    """An interrupted gathering asks for others at once, and ends with the same files."""
    parts = []

    def write(engine, seed, start, count):
        parts.append((start, count))
        yield from ((i, f"Question number {i}?") for i in range(start, start + count))

    monkeypatch.setattr("specjax.tools.boost.texts.write_questions", write)
    monkeypatch.setattr("specjax.tools.boost.texts._USUAL", 4)
    asking = Asking(longest=4, held_out=3)
    whole = gather(engine, tmp_path / "whole", asking, 80)
    assert parts[0] == (0, 20) and whole.gathered.prompts >= 20 and whole.gathered.prompts % 8 == 0
    gather(engine, tmp_path / "cut", asking, 80, goes_on=iter([True, False]).__next__)
    resumed = gather(engine, tmp_path / "cut", asking, 80)
    assert _texts(resumed) == _texts(whole) and resumed.gathered == whole.gathered
    assert not engine.has_work


def test_rows_have_their_answers_and_the_held_out_ones_are_apart(writer, engine, tmp_path, small_blocks):
    asking = Asking([[40 + i, 50, 60] for i in range(24)], chat=False, longest=6, held_out=11, seed=9)
    files = gather(engine, tmp_path / "texts", asking, 10**6)
    learnt, held_out = ([json.loads(line) for line in text.splitlines()] for text in _texts(files))
    assert len(held_out) == 11
    assert max(row["number"] for row in held_out) < min(row["number"] for row in learnt)
    assert files.gathered.tokens == sum(row["tokens"] for row in learnt)
    plain = Generator(writer, "none")
    for row in learnt:
        temperature = TEMPERATURES[row["number"] % len(TEMPERATURES)]
        options = dict(temperature=temperature, max_new_tokens=6, seed=9 + row["number"])
        result = plain(asking.prompts[row["number"]], **options)
        assert row["text"] == row["prompt"] + result.text
        assert row["temperature"] == temperature


def test_questions_of_the_suite_are_left_out_and_counted(engine, tmp_path, small_blocks):
    words = "one two three four five six seven eight nine ten"
    asking = Asking([f"{words} again", "something else entirely"], suite=[f"Say {words}!"], longest=4)
    files = gather(engine, tmp_path / "texts", asking, 10**6)
    assert files.gathered.in_suite == 1


def test_a_target_that_never_ends_is_refused(engine, tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr("specjax.tools.boost.texts._LEAST_NEW", 1.1)  # every answer counts as a loop
    asking = Asking([[40 + i, 50] for i in range(64)], chat=False, longest=3)
    with pytest.raises(RequestError, match="none of 32 prompts got an answer"):
        gather(engine, tmp_path / "texts", asking, 10**6)


def test_prompts_of_conversations_are_their_first_questions(writer, tmp_path):
    file = tmp_path / "chats.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": "What is one?"}, {"role": "assistant", "content": "A number."}]},
        {"turns": ["What is two?", "And three?"]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asking = find_prompts(writer, [str(file)], 100, Asking())
    assert asking.chat
    assert asking.prompts == ["What is one?", "What is two?"]


def test_prompts_of_texts_are_beginnings(target, tmp_path):
    (tmp_path / "a.txt").write_text("".join(chr(65 + i % 20) for i in range(4000)))
    asking = find_prompts(target, [str(tmp_path / "a.txt")], 100, Asking())
    assert not asking.chat
    assert {len(prompt) for prompt in asking.prompts} == {64}


def test_a_target_without_a_template_needs_data(target):
    with pytest.raises(RequestError, match="no chat template.*--data"):
        find_prompts(target, [], 100, Asking())


def test_a_template_that_begins_with_the_users_words_is_refused():
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    model = tiny_model(3, vocab_size=len(tokenizer))
    bare = LanguageModel(model, model.config, tokenizer, "bare")
    with pytest.raises(RequestError, match="nothing before the user's words"):
        next(write_questions(Engine(bare, "none", slots=2, capacity=64), 0))


def test_answers_follow_the_chat_template(writer, engine, tmp_path, small_blocks, monkeypatch):
    prompts = []
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda **request: prompts.append(request) or submit(**request))
    gather(engine, tmp_path / "texts", Asking(["What is one?"], longest=3), 1)
    turns = [{"role": "user", "content": "What is one?"}]
    assert prompts[0]["messages"] == turns
    assert render_chat(writer.tokenizer, turns)

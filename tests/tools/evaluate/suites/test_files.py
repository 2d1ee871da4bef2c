"""Suite files with faults: one line that names the file, the place and the mend."""

import gzip
import sys

import pytest

from specjax.errors import RequestError
from specjax.tools.evaluate.suites import find_suite
from specjax.tools.evaluate.suites.files import read_questions

GOOD = '{"question_id": 1, "category": "qa", "turns": ["?"]}\n'
BAD = {
    "a missing column": ("question.jsonl", GOOD + '{"question_id": 2, "category": "qa"}', "line 2: no column 'turns'; suite"),
    "not JSON": ("question.jsonl", GOOD + "{", "line 2: the line is not JSON"),
    "no object": ("question.jsonl", GOOD + "[1]", "line 2: no object; suite spec-bench needs question_id"),
    "no list of turns": ("question.jsonl", GOOD.replace('["?"]', '"?"'), "line 1: turns must be a list of texts, not '\\?'"),
    "an empty turn": ("question.jsonl", GOOD.replace('["?"]', '[" "]'), "line 1: turns must be a list of texts"),
    "an id of another type": ("question.jsonl", GOOD.replace("1", "[1]"), "question_id must be a number or a text"),
    "the same id twice": ("question.jsonl", GOOD + GOOD, r"line 2: question 1 stands at .*question.jsonl, line 1 too"),
    "no question": ("question.jsonl", "\n", "the files have no question"),
    "JSON without a list": ("questions.json", '{"a": 1}', "no list of objects"),
    "CSV of another suite": ("questions.csv", "id,article\n1,text\n", "line 2: no column 'question_id'"),
    "CSV with a short row": ("questions.csv", "question_id,category,turns\n1,qa\n", "line 2: 3 columns; suite"),
    "another format": ("question.xml", "<a>", "of an unknown format; use a file that ends in .jsonl"),
    "not UTF-8": ("question.jsonl", b"\xff\n", "not UTF-8"),
    "a cut archive": ("question.jsonl.gz", gzip.compress(GOOD.encode() * 99)[:40], "cannot be read"),
    "no archive": ("question.jsonl.gz", GOOD, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_fault_is_named_with_its_place(kind, tmp_path):
    file, content, words = BAD[kind]
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RequestError, match=words) as error:
        read_questions(find_suite("spec-bench"), tmp_path / file)
    assert file in str(error.value) and "\n" not in str(error.value)


WRONG_VALUES = {
    "mmlu": ('{"question": "?", "subject": "a", "choices": ["1", "2"], "answer": 1}', "choices must have 4 texts, not 2"),
    "hellaswag": ('{"activity_label": "a", "ctx": "b", "endings": ["c", "d"], "label": ""}', "label must be a whole number"),
    "chatbot-arena": ('{"question_id": "1", "conversation_a": "Hi"}', "conversation_a must be a list of objects"),
    "squad": ('{"id": "1", "context": "c", "question": "q", "answers": [{}]}', "answers must be a list of objects with text"),
    "gsm8k": ('{"question": "?", "answer": 3}', "answer must be some text, not 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_column(name, tmp_path):
    line, words = WRONG_VALUES[name]
    (tmp_path / "test.jsonl").write_text(line)
    with pytest.raises(RequestError, match=f"test.jsonl, line 1: {words}"):
        read_questions(find_suite(name), tmp_path)


def test_mmlu_without_options_or_a_letter(tmp_path):
    (tmp_path / "test.jsonl").write_text('{"question": "?", "answer": "A"}')
    with pytest.raises(RequestError, match="line 1: no column 'A'; suite mmlu needs"):
        read_questions(find_suite("mmlu"), tmp_path)
    (tmp_path / "a_test.csv").write_text("?,1,2,3,4,E\n")
    with pytest.raises(RequestError, match="a_test.csv, line 1: answer must be one of the letters"):
        read_questions(find_suite("mmlu"), tmp_path)


def test_a_place_without_the_suites_files_names_those_it_expects(tmp_path):
    with pytest.raises(RequestError, match="no file of suite humaneval there; it expects one of HumanEval.jsonl"):
        read_questions(find_suite("humaneval"), tmp_path)
    with pytest.raises(RequestError, match="no such file or directory"):
        read_questions(find_suite("humaneval"), tmp_path / "missing")


@pytest.mark.parametrize("package", ["pyarrow", "datasets"])
def test_a_missing_package_names_the_extra(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    data = tmp_path / "test.parquet" if package == "pyarrow" else None
    with pytest.raises(RequestError, match=rf"{package}; install it with pip install 'specjax\[eval\]'"):
        read_questions(find_suite("xsum"), data)


def test_a_suite_that_is_a_file_of_a_repository_needs_data():
    with pytest.raises(RequestError, match="give it with --data .https://github.com/hemingkx/Spec-Bench"):
        read_questions(find_suite("spec-bench"), None)


@pytest.mark.slow
def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "test.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RequestError, match="not Parquet"):
        read_questions(find_suite("xsum"), tmp_path)

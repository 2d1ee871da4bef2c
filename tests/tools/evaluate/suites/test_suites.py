"""Each suite reads small files in its published schema, and asks in the form that it names."""

import csv
import gzip
import json

import pytest

from specjax.errors import RequestError
from specjax.tools.evaluate.benchmark.scores import SCORES
from specjax.tools.evaluate.suites import SUITES, Question, find_suite
from specjax.tools.evaluate.suites.files import read_questions

TURNS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["1 + 1?"], "reference": ["#### 2"]},
    {"question_id": 481, "category": "rag", "turns": ["Read."], "reference": [["a", "b"]]},
]
MMLU = [["What is 1 + 1?", "1", "2", "3", "4", "B"], ['Say "a, b".', "a", "b", "c", "d", "D"]]
MMLU_PROMPT = (
    "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
    "What is 1 + 1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
)
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": "The sky is blue.",
                    "qas": [
                        {"id": "q1", "question": "Which colour?", "answers": [{"text": "blue", "answer_start": 11}]}
                    ],
                }
            ],
        }
    ],
}

PUBLISHED: dict[str, tuple[str, object, Question]] = {
    "spec-bench": ("question.jsonl", TURNS, Question(81, "writing", "mt_bench", ("Write.", "Rewrite."))),
    "mt-bench": ("question.jsonl", TURNS, Question(81, "writing", "writing", ("Write.", "Rewrite."))),
    "alpaca": (
        "alpaca_data.json",
        [{"instruction": "Add.", "input": "1, 2", "output": "3"}, {"instruction": "Go.", "input": "", "output": "ok"}],
        Question(0, "alpaca", "alpaca", ("Add.\n\n1, 2",), ("3",)),
    ),
    "chatbot-arena": (
        "arena.jsonl",
        [
            {
                "question_id": "58210e39",
                "conversation_a": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Hello"},
                    {"role": "user", "content": "Bye"},
                ],
            }
        ],
        Question("58210e39", "arena", "arena", ("Hi", "Bye")),
    ),
    "humaneval": (
        "HumanEval.jsonl.gz",
        [{"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    pass\n", "test": "", "entry_point": "f"}],
        Question("HumanEval/0", "humaneval", "humaneval", ("def f():\n",), ("    pass\n",)),
    ),
    "class-eval": (
        "ClassEval_data.json",
        [{"task_id": "ClassEval_0", "class_name": "A", "skeleton": "class A:\n", "solution_code": "class A: pass"}],
        Question(
            "ClassEval_0", "class-eval", "class-eval", ("Complete the class A in this code.\n\nclass A:\n",), ("class A: pass",)
        ),
    ),
    "gsm8k": (
        "test.jsonl",
        [{"question": "1 + 1?", "answer": "It is <<1+1=2>>2.\n#### 2"}],
        Question(0, "gsm8k", "gsm8k", ("Question: 1 + 1?\nAnswer:",), ("It is <<1+1=2>>2.\n#### 2",)),
    ),
    "math-500": (
        "test.jsonl",
        [{"problem": "Halve 1.", "solution": "", "answer": "\\frac{1}{2}", "subject": "Algebra", "level": 1, "unique_id": "a/1.json"}],
        Question(
            "a/1.json",
            "Algebra",
            "math-500",
            ("Halve 1.\nPlease reason step by step, and put your final answer within \\boxed{}.",),
            ("\\frac{1}{2}",),
        ),
    ),
    "cnn_dm": (
        "test.csv",
        [["id", "article", "highlights"], ["0", "Long\ntext, with a comma.", "Short."]],
        Question("0", "cnn_dm", "cnn_dm", ("Summarize: Long\ntext, with a comma.",), ("Short.",)),
    ),
    "xsum": (
        "test.jsonl",
        [{"document": "Long.", "summary": "Short.", "id": "7"}],
        Question("7", "xsum", "xsum", ("Summarize in one sentence: Long.",), ("Short.",)),
    ),
    "squad": (
        "dev-v1.1.json",
        SQUAD,
        Question("q1", "squad", "squad", ("The sky is blue.\n\nQuestion: Which colour?\nAnswer:",), ("blue",)),
    ),
    "mmlu": (
        "abstract_algebra_test.csv",
        MMLU,
        Question(
            "abstract_algebra/0", "abstract_algebra", "mmlu", (MMLU_PROMPT,), options=(" A", " B", " C", " D"), right=1
        ),
    ),
    "hellaswag": (
        "hellaswag_val.jsonl",
        [{"ind": 24, "activity_label": "Roof", "ctx": "A man sits. he", "endings": ["w.", "x.", "y.", "z."], "label": 3}],
        Question(24, "hellaswag", "hellaswag", ("Roof: A man sits. he",), options=(" w.", " x.", " y.", " z."), right=3),
    ),
}  # fmt: skip
"""For each suite: the name of its file, what the file holds, and the first question."""

PARQUET = {
    "mmlu": (
        [{"question": "What is 1 + 1?", "subject": "abstract_algebra", "choices": ["1", "2", "3", "4"], "answer": 1}],
        PUBLISHED["mmlu"][2],
    ),
    "squad": (
        [
            {
                "id": "q1",
                "context": "The sky is blue.",
                "question": "Which colour?",
                "answers": {"text": ["blue"], "answer_start": [11]},
            }
        ],
        PUBLISHED["squad"][2],
    ),
    "cnn_dm": ([{"article": "Long\ntext, with a comma.", "highlights": "Short.", "id": "0"}], PUBLISHED["cnn_dm"][2]),
    "hellaswag": (
        [{"ind": 24, "activity_label": "Roof", "ctx": "A man sits. he", "endings": ["w.", "x.", "y.", "z."], "label": "3"}],
        PUBLISHED["hellaswag"][2],
    ),
}  # fmt: skip


def write(path, content) -> None:
    """Writes content in the format that the file's name says."""
    if path.name.endswith(".csv"):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(content)
    elif path.name.endswith(".json"):
        path.write_text(json.dumps(content))
    else:
        lines = "".join(json.dumps(row) + "\n" for row in content).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_read_and_asked_in_the_suites_form(name, tmp_path):
    file, content, expected = PUBLISHED[name]
    write(tmp_path / file, content)
    (tmp_path / "SOURCE.txt").write_text("another file")
    assert read_questions(find_suite(name), tmp_path)[0] == expected
    assert read_questions(find_suite(name), tmp_path / file)[0] == expected


def test_every_suite_is_tested_and_names_source_licence_and_form():
    assert set(SUITES) == {*PUBLISHED, "small"}
    for suite in SUITES.values():
        assert suite.source and suite.licence and suite.form and suite.columns
        assert set(suite.scores.values()) <= SCORES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PARQUET)
def test_parquet_is_read_as_published(name, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows, expected = PARQUET[name]
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / ("validation" if name in ("squad", "hellaswag") else "test")
    parquet.write_table(pyarrow.Table.from_pylist(rows), f"{file}-00000-of-00001.parquet")
    assert read_questions(find_suite(name), tmp_path) == [expected]


def test_tasks_of_spec_bench_join_the_categories_of_mt_bench(tmp_path):
    write(tmp_path / "question.jsonl", TURNS)
    found = read_questions(find_suite("spec-bench"), tmp_path)
    assert [question.task for question in found] == ["mt_bench", "math_reasoning", "rag"]
    assert [question.references for question in found] == [(), ("#### 2",), ()]


def test_the_limit_counts_questions_of_each_task(tmp_path):
    rows = [{"question_id": i, "category": "qa" if i % 3 else "rag", "turns": ["?"]} for i in range(9)]
    write(tmp_path / "question.jsonl", rows)
    found = read_questions(find_suite("spec-bench"), tmp_path, limit=2)
    assert [question.id for question in found] == [0, 1, 2, 3]


def test_the_small_suite_ships_with_the_package():
    questions = read_questions(find_suite("small"), None)
    assert len(questions) == 30
    assert len({question.task for question in questions}) == 5
    assert max(len(question.turns) for question in questions) == 2


def test_rows_come_from_the_hub_by_the_package_datasets(monkeypatch):
    calls = []

    class Datasets:
        @staticmethod
        def load_dataset(*args, **options):
            calls.append((args, options))
            return PUBLISHED["xsum"][1]

    monkeypatch.setitem(__import__("sys").modules, "datasets", Datasets)
    assert read_questions(find_suite("xsum"), None) == [PUBLISHED["xsum"][2]]
    assert calls == [(("EdinburghNLP/xsum", None), {"split": "test"})]


def test_an_unknown_suite_names_a_similar_one():
    with pytest.raises(RequestError, match="suite 'spec_bench' is unknown; did you mean spec-bench"):
        find_suite("spec_bench")
    with pytest.raises(RequestError, match="use one of .*humaneval"):
        find_suite("?")

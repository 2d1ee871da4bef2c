"""Suites of texts to read: CNN/DailyMail and XSum to summarise, SQuAD to answer from."""

from collections.abc import Mapping

from ....core.checks import shorten
from ....errors import RequestError
from .suite import Question, Row, Suite, text_of


def ask_article(row: Row, number: int) -> Question:
    """The article of a row, with the request to summarise it, in the words of Spec-Bench."""
    turn = f"Summarize: {text_of(row, 'article')}"
    return Question(row.get("id") or number, "cnn_dm", "cnn_dm", (turn,), (text_of(row, "highlights"),))


def ask_xsum(row: Row, number: int) -> Question:
    """The document of a row, with the request for a summary of one sentence."""
    turn = f"Summarize in one sentence: {text_of(row, 'document')}"
    return Question(row.get("id") or number, "xsum", "xsum", (turn,), (text_of(row, "summary"),))


def ask_squad(row: Row, number: int) -> Question:
    """The paragraph of a row and a question about it."""
    turn = f"{text_of(row, 'context')}\n\nQuestion: {text_of(row, 'question')}\nAnswer:"
    return Question(text_of(row, "id"), "squad", "squad", (turn,), _squad_answers(row["answers"]))


def squad_rows(article: Row) -> list[Row]:
    """The questions of an article of the published JSON, or the row of another format itself."""
    if "paragraphs" not in article:
        return [article]
    try:
        return [
            {**question, "context": paragraph["context"]}
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (TypeError, KeyError):
        raise RequestError("paragraphs must be a list of objects with context and qas, as in SQuAD 1.1") from None


def _squad_answers(answers) -> tuple[str, ...]:
    """The texts of the published JSON's list of answers, or of the lists of other formats."""
    texts = answers.get("text") if isinstance(answers, Mapping) else answers
    texts = [each.get("text") if isinstance(each, Mapping) else each for each in texts or ()]
    strings = tuple(text for text in texts if isinstance(text, str))
    if len(strings) < len(texts):
        raise RequestError(f"answers must be a list of objects with text, not {shorten(answers)}")
    return strings


SUITES = (
    Suite(
        "cnn_dm",
        source="https://huggingface.co/datasets/abisee/cnn_dailymail, 3.0.0",
        licence="Apache-2.0",
        form="'Summarize: ' and the article, as in Spec-Bench",
        columns=("article", "highlights"),
        ask=ask_article,
        files=("test-*.parquet", "test.csv", "test.jsonl"),
        hub=("abisee/cnn_dailymail", "3.0.0", "test"),
        scores={"cnn_dm": "rouge"},
    ),
    Suite(
        "xsum",
        source="https://huggingface.co/datasets/EdinburghNLP/xsum",
        licence="unknown; the articles are the BBC's",
        form="'Summarize in one sentence: ' and the document",
        columns=("document", "summary"),
        ask=ask_xsum,
        files=("test-*.parquet", "test.csv", "test.jsonl"),
        hub=("EdinburghNLP/xsum", None, "test"),
        scores={"xsum": "rouge"},
    ),
    Suite(
        "squad",
        source="https://rajpurkar.github.io/SQuAD-explorer, dev-v1.1.json",
        licence="CC-BY-SA-4.0",
        form="the paragraph, an empty line, 'Question: ', the question, and a line that begins 'Answer:'",
        columns=("id", "context", "question", "answers"),
        ask=ask_squad,
        files=("dev-v1.1.json", "validation-*.parquet"),
        rows=squad_rows,
        hub=("rajpurkar/squad", None, "validation"),
        scores={"squad": "overlap"},
    ),
)

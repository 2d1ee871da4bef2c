"""Suites of questions to an assistant: Spec-Bench, MT-Bench, Alpaca, Chatbot Arena and ours."""

from ....core.checks import shorten
from ....errors import RequestError
from .suite import Question, Row, Suite, text_of, texts_of

_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""The categories of MT-Bench, which are one of Spec-Bench's six tasks."""


def ask_turns(row: Row, number: int) -> Question:
    """The question of a row in Spec-Bench's format, which is MT-Bench's too."""
    id = row["question_id"]
    category = text_of(row, "category")
    if not isinstance(id, int | str):
        raise RequestError(f"question_id must be a number or a text, not {shorten(id)}")
    task = "mt_bench" if category in _MT_BENCH else category
    references = row.get("reference") or ()
    references = tuple(text for text in references if isinstance(text, str)) if isinstance(references, list) else ()
    return Question(id, category, task, texts_of(row, "turns"), references)


def ask_mt_bench(row: Row, number: int) -> Question:
    """The question of a row of MT-Bench, with its category as the task."""
    question = ask_turns(row, number)
    return Question(question.id, question.category, question.category, question.turns, question.references)


def ask_alpaca(row: Row, number: int) -> Question:
    """The instruction of a row, with its input below."""
    context = row.get("input")
    turn = "\n\n".join([text_of(row, "instruction"), *([context] if isinstance(context, str) and context else [])])
    output = row.get("output")
    return Question(number, "alpaca", "alpaca", (turn,), (output,) if isinstance(output, str) else ())


def ask_arena(row: Row, number: int) -> Question:
    """The user's turns of the first of a row's two conversations."""
    messages = row["conversation_a"]
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise RequestError(f"conversation_a must be a list of objects with role and content, not {shorten(messages)}")
    users = [text_of(message, "content") for message in messages if message.get("role") == "user"]
    if not users:
        raise RequestError("conversation_a has no message of the role user; give at least one")
    return Question(text_of(row, "question_id"), "arena", "arena", tuple(users))


_TURNS = ("question_id", "category", "turns")
_FORM = "the turns as they are, each after the model's answer to the turn before"

SUITES = (
    Suite(
        "spec-bench",
        source="https://github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl",
        licence="Apache-2.0; its parts come from MT-Bench, WMT14, CNN/DailyMail, Natural Questions, GSM8K and DPR",
        form=_FORM,
        columns=_TURNS,
        ask=ask_turns,
        files=("question.jsonl",),
        scores={"summarization": "rouge", "math_reasoning": "number"},
    ),
    Suite(
        "mt-bench",
        source="https://github.com/lm-sys/FastChat, fastchat/llm_judge/data/mt_bench/question.jsonl",
        licence="Apache-2.0",
        form=_FORM,
        columns=_TURNS,
        ask=ask_mt_bench,
        files=("question.jsonl", "mt_bench.jsonl"),
    ),
    Suite(
        "alpaca",
        source="https://github.com/tatsu-lab/stanford_alpaca, alpaca_data.json",
        licence="CC-BY-NC-4.0",
        form="the instruction, an empty line, and the input where there is one",
        columns=("instruction",),
        ask=ask_alpaca,
        files=("alpaca_data.json", "*.parquet"),
        hub=("tatsu-lab/alpaca", None, "train"),
    ),
    Suite(
        "chatbot-arena",
        source="https://huggingface.co/datasets/lmsys/chatbot_arena_conversations",
        licence="prompts CC-BY-4.0, answers CC-BY-NC-4.0",
        form="the user's turns of conversation_a, each after the model's own answer to the turn before",
        columns=("question_id", "conversation_a"),
        ask=ask_arena,
        files=("*.parquet",),
        hub=("lmsys/chatbot_arena_conversations", None, "train"),
    ),
    Suite(
        "small",
        source="specjax, specjax/tools/evaluate/suites/small.jsonl, written for specjax",
        licence="Apache-2.0",
        form=_FORM,
        columns=_TURNS,
        ask=ask_turns,
        files=("small.jsonl",),
    ),
)

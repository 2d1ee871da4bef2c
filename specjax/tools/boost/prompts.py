"""The prompts of a boost from a user's files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...text.table_files import is_table
from ...training.data import read_streams
from ...training.sources import make_sources
from ..evaluate.datasets import read_conversations
from .texts import Asking

_BEGINNING = 64
"""The tokens of a beginning that is cut from a text."""

_ANSWER = 384
"""The most tokens of an answer. Longer answers of small models often loop."""

_CONTINUATION = 192
"""The most tokens that the target writes after a beginning."""


def find_prompts(target: LanguageModel, data: Sequence[str], tokens: int, asking: Asking) -> Asking:
    """The prompts of ``data``, or questions that the target writes itself.

    Files of conversations give the first question of each. From all other data beginnings are cut,
    which the target continues.

    Args:
      data: files, as training reads them.
      tokens: the tokens that the answers are to have.
      asking: the options that do not depend on the data.

    Raises RequestError for unreadable data, and without data for a target without a chat template.
    """
    has_template = bool(getattr(target.tokenizer, "chat_template", None))
    if not data and not has_template:
        raise RequestError(
            f"{target.name} has no chat template, so it cannot write questions itself; give texts with --data"
        )
    longest = min(_ANSWER, target.config.context // 2)
    asking = dataclasses.replace(asking, longest=longest)
    if not data:
        return asking
    for source in make_sources(data):
        source.list_files()
    if has_template and all(is_table(Path(path)) for path in data):
        conversations = [each for path in data for each in read_conversations(path)]
        questions = [next((turn["content"] for turn in each if turn["role"] == "user"), "") for each in conversations]
        return dataclasses.replace(asking, prompts=[question for question in questions if question.strip()])
    context = target.config.context
    beginning = min(_BEGINNING, context // 4)
    continuation = min(_CONTINUATION, context // 2)
    mixture, _ = read_streams(data, target.tokenizer, (target.config.eos_token_ids or (0,))[0])
    mixture.check_windows(beginning)
    count = 2 * tokens // continuation + 2 * asking.held_out
    windows, _ = mixture.cut(asking.seed, 0, count, beginning)
    return dataclasses.replace(asking, prompts=windows[:, :beginning].tolist(), chat=False, longest=continuation)

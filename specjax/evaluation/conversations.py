"""Conversations as prompts of a measurement: each turn of the user, after the answers to the turns
before.
"""

from collections.abc import Sequence

from ..checkpoints.load import LanguageModel
from ..errors import RequestError
from ..generate import generate
from ..requests.chat import end_of_turn_ids, render_chat
from ..requests.vocabulary import decode_continuation


def chat_prompts(
    target: LanguageModel, conversations: Sequence[Sequence[dict]], max_new_tokens: int = 128
) -> list[list[int]]:
    """The token ids of every user's turn with all that precedes it, in the tokenizer's chat
    template.

    A conversation may hold answers of the assistant, and they stay. The target answers every other
    turn but the last by plain greedy decoding, so that all methods get the same prompts.

    Args:
      conversations: lists of messages such as {"role": "user", "content": "..."}.
      max_new_tokens: the most tokens of an answer. It ends before the template's end-of-turn token.

    Raises RequestError for a tokenizer without a template. Names the conversation and the message,
    both counted from 1, that the template refuses or that leaves no room in the model's context.
    """
    end_of_turn_ids(target.tokenizer)  # raises for a tokenizer without a template
    return [ids for i, each in enumerate(conversations, 1) for ids in _prompts(target, each, max_new_tokens, i)]


def _prompts(target: LanguageModel, messages: Sequence[dict], max_new_tokens: int, number: int) -> list[list[int]]:
    """The prompts of one conversation, which errors name by its ``number``."""
    history, prompts = [], []
    for i, message in enumerate(messages):
        history.append(message)
        if message["role"] != "user":
            continue
        prompts.append(_render(target, history, f"conversation {number}, message {i + 1}"))
        if i + 1 < len(messages) and messages[i + 1]["role"] != "assistant":
            history.append({"role": "assistant", "content": _answer(target, history, max_new_tokens)})
    return prompts


def _render(target: LanguageModel, history: list[dict], name: str) -> list[int]:
    try:
        ids = render_chat(target.tokenizer, history)
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None
    context = target.config.context
    if len(ids) >= context:
        raise RequestError(
            f"{name} makes a prompt of {len(ids)} tokens, and the model's context of {context} leaves no room for an "
            "answer; shorten the conversation, or lower max_new_tokens"
        )
    return ids


def _answer(target: LanguageModel, history: list[dict], max_new_tokens: int) -> str:
    """The target's answer as text, without the token that ended it, which need not be a special
    token.
    """
    result = generate(target, messages=history, method="none", max_new_tokens=max_new_tokens)
    ids = result.token_ids[:-1] if result.finish_reason == "stop" else result.token_ids
    return decode_continuation(target.tokenizer, target.config.vocab_size, result.prompt_token_ids, ids)

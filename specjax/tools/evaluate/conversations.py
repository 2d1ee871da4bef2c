"""Turns conversations into the prompts of a measurement, one for each turn of the user."""

from collections.abc import Sequence

from ...checkpoints.load import LanguageModel
from ...errors import RequestError
from ...requests.chat import end_of_turn_ids, render_chat
from ...requests.vocabulary import decode_continuation
from ...text.generate import generate


def chat_prompts(
    target: LanguageModel, conversations: Sequence[Sequence[dict]], max_new_tokens: int = 128
) -> list[list[int]]:
    """The token ids of a prompt for each turn of the user, in the tokenizer's chat template.

    A prompt holds the conversation up to the user's turn, with the answers that the conversation
    already has. The target answers the other turns, except the last, by plain greedy decoding, so
    all methods get the same prompts.

    Args:
      target: the model that answers, and the owner of the tokenizer.
      conversations: lists of messages such as {"role": "user", "content": "..."}.
      max_new_tokens: the largest number of tokens of an answer. An answer ends before the
        template's end-of-turn token.

    Raises RequestError for a tokenizer without a template, and for a message that the template
    refuses or that leaves no room in the model's context. The error counts conversations and
    messages from 1.
    """
    end_of_turn_ids(target.tokenizer)  # raises for a tokenizer without a template
    return [ids for i, each in enumerate(conversations, 1) for ids in _prompts(target, each, max_new_tokens, i)]


def _prompts(target: LanguageModel, messages: Sequence[dict], max_new_tokens: int, number: int) -> list[list[int]]:
    """The prompts of one conversation. Errors name it by its ``number``."""
    history = []
    prompts = []
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
    """The target's answer as text, without the token that ended it.

    That token need not be a special token, so decoding alone would not remove it.
    """
    result = generate(target, messages=history, method="none", max_new_tokens=max_new_tokens)
    ids = result.token_ids[:-1] if result.finish_reason == "stop" else result.token_ids
    return decode_continuation(target.tokenizer, target.config.vocab_size, result.prompt_token_ids, ids)

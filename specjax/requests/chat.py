"""Turns conversations into prompts by the tokenizer's chat template, and finds its end of turn."""

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..core.checks import shorten
from ..errors import RequestError
from .limits import check_limit

_ANSWER = "specjax-answer"
_QUESTION = "specjax-question"
"""The texts of a trial conversation, which shows how a template ends a turn."""


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A conversation with its own arguments for the chat template.

    It may end with the assistant's turn: the model then adds another turn, or continues the last.

    Attributes:
      messages: the turns, see ``render_chat``.
      arguments: arguments of transformers' ``apply_chat_template``: tools, continue_final_message,
        and add_generation_prompt, which is true by default without the one before.
      variables: further variables of the template, such as {"enable_thinking": False}.
    """

    messages: Sequence[Mapping]
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def text(self, tokenizer) -> str:
        """The conversation in the tokenizer's chat template.

        Raises RequestError for a variable with the name of an argument, and the errors of
        ``render_chat``.
        """
        for name in self.variables:
            if name in inspect.signature(tokenizer.apply_chat_template).parameters:
                raise RequestError(f"{shorten(name)} is no variable of a chat template; leave it out")
        check_messages(self.messages)
        begins = not self.arguments.get("continue_final_message")
        arguments = {"add_generation_prompt": begins} | dict(self.arguments) | dict(self.variables)
        text = _render(tokenizer, [dict(message) for message in self.messages], **arguments)
        _check_complete(self.messages, text)
        return text


def render_chat(tokenizer, messages: Sequence[Mapping] | Conversation, add_generation_prompt: bool = True) -> list[int]:
    """The token ids of a conversation in the tokenizer's chat template.

    Args:
      messages: turns such as {"role": "user", "content": "..."}; or a ``Conversation``, which has
        arguments of its own.
      add_generation_prompt: whether to end with the beginning of the assistant's next turn.

    Raises RequestError for a tokenizer without a template, for messages that are no conversation,
    and for a conversation that ends with the assistant's turn, since it leaves nothing to answer.
    Where the template refuses the conversation, the error has the template's own message.
    """
    if not isinstance(messages, Conversation):
        check_messages(messages)
        if add_generation_prompt and messages[-1]["role"] == "assistant":
            raise RequestError("messages ends with the assistant's turn; end with the turn that the model is to answer")
        messages = Conversation(messages, {"add_generation_prompt": add_generation_prompt})
    text = messages.text(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)  # the template writes the special tokens itself
    if not ids:
        raise RequestError("the chat template makes an empty prompt of messages; mend the tokenizer's chat_template")
    return ids


def render_answers(tokenizer, messages: Sequence[Mapping]) -> list[tuple[str, list[tuple[int, int]]]]:
    """The texts of a conversation from which a model learns the assistant's answers.

    Each text has the spans of its answers, begin and end in characters. A span begins where a
    generation would begin. It ends with the token that ends the turn, see ``end_of_turn_ids``.

    A conversation is one text if the template only adds text for each turn. Some templates change
    earlier turns, such as those that drop earlier reasoning. Each answer after such a change has a
    text of its own, in which the earlier turns stand as the model reads them in use. Turns after
    the last answer are left out.

    Raises the errors of ``render_chat``. Also raises RequestError for a conversation that has no
    answer or begins with one, and for a template that begins an answer otherwise than it asks for
    one.
    """
    check_messages(messages)
    turns = [dict(message) for message in messages]
    answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not answers:
        raise RequestError("messages has no assistant turn; add the answer that is to be learnt")
    if answers[0] == 0:
        raise RequestError("messages begins with the assistant's turn; begin with the user's")
    texts: list[tuple[str, list[tuple[int, int]]]] = []
    for i in answers:
        asked = _render(tokenizer, turns[:i], add_generation_prompt=True)
        text = _render(tokenizer, turns[: i + 1], add_generation_prompt=False)
        if not text.startswith(asked):
            raise RequestError(
                f"the chat template begins the answer messages[{i}] otherwise than it asks for one; "
                "use a template that only adds text"
            )
        known = texts.pop() if texts and text.startswith(texts[-1][0]) else ("", [])
        texts.append((text, [*known[1], (len(asked), _end_of_turn(tokenizer, text, len(asked)))]))
    _check_complete(messages[: answers[-1] + 1], texts[-1][0])
    return texts


def _end_of_turn(tokenizer, text: str, begin: int) -> int:
    """The end in ``text`` of the last turn, which begins at ``begin``."""
    for name in tokenizer.convert_ids_to_tokens(list(end_of_turn_ids(tokenizer))):
        place = text.rfind(name, begin)
        if place >= 0:
            return place + len(name)
    return len(text)


def _check_complete(messages: Sequence[Mapping], text: str) -> None:
    """Raises RequestError for a turn that is not in the rendered ``text``."""
    for i, message in enumerate(messages):  # templates may shorten earlier answers, and quote what a tool gave
        if message["role"] not in ("assistant", "tool") and message["content"].strip() not in text:
            raise RequestError(
                f"the chat template leaves out messages[{i}] of role {message['role']!r}; use roles that it knows"
            )


def is_conversation(messages) -> bool:
    """Whether ``messages`` is one conversation, a list of turns, and not a list of them."""
    return not isinstance(messages, Sequence) or not messages or isinstance(messages[0], Mapping)


def check_messages(messages) -> None:
    """Raises RequestError where ``messages`` is no list of turns with a role and a text."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f'messages must be a list such as [{{"role": "user", "content": "..."}}], not {shorten(messages)}'
        )
    if not messages:
        raise RequestError("messages is empty; give at least one turn")
    check_limit(
        len(messages), "MOST_MESSAGES", f"messages: the number of {len(messages):,} turns", "leave out the oldest"
    )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{i}] must be a dict with role and content, not {shorten(message)}")
        for name in ("role", "content"):
            if not isinstance(message.get(name), str):
                raise RequestError(f"messages[{i}] needs a string as its {name}, not {shorten(message.get(name))}")


@lru_cache(8)
def end_of_turn_ids(tokenizer) -> tuple[int, ...]:
    """The token that the chat template writes after the assistant's answer, in a tuple.

    The tuple is empty where the template writes none. The token is one of the tokenizer's added
    tokens. It ends the model's turn, in addition to the model's end-of-text tokens.
    """
    question = {"role": "user", "content": _QUESTION}
    answer = {"role": "assistant", "content": _ANSWER}
    text = _render(tokenizer, [question, answer], add_generation_prompt=False)
    after = text[text.rfind(_ANSWER) + len(_ANSWER) :] if _ANSWER in text else ""
    names = {token.content: id for id, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
    any_name = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    match = re.search(any_name, after) if names else None
    return (names[match[0]],) if match else ()


def _render(tokenizer, messages: list[dict], **arguments) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError(
            "the model's tokenizer has no chat template; give the prompt as text, or use a model made for chat"
        )
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    except ImportError as error:
        raise RequestError(f"chat templates need a package that is missing: {' '.join(str(error).split())}") from None
    except Exception as error:  # a template runs code of its own and may raise anything
        message = " ".join(str(error).split()) or type(error).__name__
        roles = sorted({message["role"] for message in messages})
        raise RequestError(f"the chat template fails for the roles {', '.join(roles)}: {message}") from None

"""Conversations of requests: their prompts, and what their tools ask of the answers."""

import dataclasses
from typing import Any

from ..requests.chat import Conversation, render_chat
from ..requests.options import CONSTRAINTS
from .chat_schema import ChatRequest
from .errors import ServeError
from .thoughts import BEGIN, END
from .tools.choice import enforced_grammar
from .tools.formats import format_of
from .turns import TurnForm


@dataclasses.dataclass(frozen=True)
class Asked:
    """A conversation that is to be answered.

    Attributes:
      conversation: its turns.
      length: the number of the prompt's tokens.
      form: how the answer is read.
      options: the options that its tools need.
    """

    conversation: Conversation
    length: int
    form: TurnForm
    options: dict[str, Any]


def read_conversation(tokenizer, body: ChatRequest, options: dict[str, Any]) -> Asked:
    """The conversation of a request with ``options``.

    Raises ServeError and RequestError for a conversation that the chat template cannot render, for
    tools that it does not know, and for a constraint beside calls that must be made.
    """
    conversation = body.conversation()
    length = len(render_chat(tokenizer, conversation))
    constrained = [name for name in (*CONSTRAINTS, "response_format") if options.get(name) is not None]
    own: dict[str, Any] = {}
    calls = None
    if "tools" in conversation.arguments:
        calls = format_of(tokenizer, conversation)
        parallel = body.parallel_tool_calls is not False
        grammar = enforced_grammar(body.tools or [], body.choice, parallel, calls, tokenizer)
        if grammar is not None:
            if constrained:
                message = f"tool_choice demands calls, and {constrained[0]} another text; leave one out"
                raise ServeError(400, message, param="tool_choice")
            own = {"grammar": grammar}
    thinks = END in str(tokenizer.chat_template)
    # A constraint begins with the text, so a text that has one has no reasoning.
    is_open = thinks and not constrained and not own and conversation.text(tokenizer).rstrip().endswith(BEGIN)
    form = TurnForm(thinks, is_open, calls, calls is not None and calls.is_bare(tokenizer))
    return Asked(conversation, length, form, own)

"""The body of ``/v1/chat/completions``: a conversation, its tools, and its template's options."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ..requests.chat import Conversation
from ..requests.options import MOST_LOGPROBS
from .errors import ServeError
from .request_schema import Common, PositiveInt
from .tools.choice import Tool, ToolChoice, check_choice, plain_calls

_PASSED_ON = {"user": ("name",), "assistant": ("name", "reasoning_content"), "tool": ("name", "tool_call_id")}
"""Further fields of a turn that chat templates may read, by its role."""


class Message(BaseModel):
    """A turn of a conversation.

    Attributes:
      role: the speaker. ``developer`` is another name of ``system``.
      content: the text, or its parts, objects such as {"type": "text", "text": "..."}. Only an
        assistant's turn may have none.
      tool_calls: the calls of an assistant's turn.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None

    def turn(self, number: int) -> dict[str, Any]:
        """The turn with one text.

        Raises ServeError for parts that are no text, and for fields that the server does not know.
        """
        where = f"messages[{number}]"
        role = "system" if self.role == "developer" else self.role
        extra = {key: value for key, value in (self.model_extra or {}).items() if value not in (None, [])}
        for key in extra.keys() - {"name", *_PASSED_ON.get(role, ())}:
            raise ServeError(400, f"{where} has {key}, which is not supported; leave it out", param="messages")
        if self.tool_calls and role != "assistant":
            raise ServeError(400, f"{where} has tool_calls; only the assistant calls tools", param="messages")
        calls = {"tool_calls": plain_calls(self.tool_calls, where)} if self.tool_calls else {}
        return {"role": role, "content": self._text(where), **extra, **calls}

    def _text(self, where: str) -> str:
        if self.content is None and self.role != "assistant":
            raise ServeError(400, f"{where} has no content; give a text", param="messages")
        parts = self.content or ""
        parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
            raise ServeError(400, f"{where} has a part that is no text; give texts only", param="messages")
        return "".join(part["text"] for part in parts)


class ChatRequest(Common):
    """The body of ``/v1/chat/completions``.

    Attributes:
      messages: the conversation.
      max_completion_tokens: the most new tokens of each text, the newer name of ``max_tokens``.
      logprobs: whether the answer has log-probabilities.
      top_logprobs: with ``logprobs``, the number of likeliest tokens at each place.
      tools: the tools that the model may call.
      tool_choice: whether it may or must call them, or the one that it must call.
      parallel_tool_calls: whether a text may have several calls.
      chat_template_kwargs: variables of the chat template, such as {"enable_thinking": false}.
      add_generation_prompt: whether the prompt begins the assistant's next turn; true by default.
      continue_final_message: whether the text continues the last turn, which is the assistant's.
    """

    messages: list[Message]
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def choice(self) -> ToolChoice:
        """``tool_choice``, or its default."""
        return self.tool_choice or ("auto" if self.tools else "none")

    def conversation(self) -> Conversation:
        """The conversation with its arguments for the chat template.

        Tools that may not be called are left out. Raises ServeError for fields that do not fit.
        """
        turns = [message.turn(i) for i, message in enumerate(self.messages)]
        tools = self.tools or []
        check_choice(tools, self.choice)
        continues = bool(self.continue_final_message)
        if continues and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt exclude one another; give one"
            raise ServeError(400, message, param="continue_final_message")
        if continues and (not turns or turns[-1]["role"] != "assistant"):
            message = "continue_final_message needs a last turn of the assistant; add it, or leave the field out"
            raise ServeError(400, message, param="continue_final_message")
        begins = not continues and self.add_generation_prompt is not False
        arguments: dict[str, Any] = {"add_generation_prompt": begins, "continue_final_message": continues}
        if tools and self.choice != "none":
            arguments["tools"] = [tool.model_dump(exclude_unset=True) for tool in tools]
        return Conversation(turns, arguments, self.chat_template_kwargs or {})

    def options(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise ServeError(400, "top_logprobs needs logprobs; set logprobs to true", param="top_logprobs")
        if self.max_tokens == 0:
            raise ServeError(400, "max_tokens is 0; ask for 1 at least", param="max_tokens")
        options = super().options(defaults)
        if self.max_completion_tokens is not None:
            if super().length not in (None, ("max_tokens", self.max_completion_tokens)):
                message = "max_completion_tokens and max_tokens are one option; give one"
                raise ServeError(400, message, param="max_completion_tokens")
            options["max_tokens"] = self.max_completion_tokens
        return options | ({"logprobs": self.top_logprobs or 0} if self.logprobs else {})

    @property
    def length(self) -> tuple[str, Any] | None:
        newer = self.max_completion_tokens
        return super().length if newer is None else ("max_completion_tokens", newer)

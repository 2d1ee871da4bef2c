"""How families of models write calls of tools in their texts."""

import dataclasses

from ...errors import RequestError
from ...requests.chat import Conversation


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """A way to write calls: objects of JSON with a name and arguments, and texts around them.

    Attributes:
      name: the family of models.
      sign: the text in a chat template by which the family is known.
      mark: the text before the first call, by which a reader finds it.
      opening, between, closing: what else stands before, between and after the calls.
      arguments: the key of the arguments.
      needs_mark: whether a call must have the mark before it.
    """

    name: str
    sign: str
    mark: str
    opening: str
    between: str
    closing: str
    arguments: str = "arguments"
    needs_mark: bool = True

    def is_bare(self, tokenizer) -> bool:
        """Whether a text may begin with a call without the mark.

        A mark that is a special token is no part of the text.
        """
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        return not self.needs_mark or self.mark in special

    @property
    def fillers(self) -> tuple[str, ...]:
        """The texts without blanks that may stand between two calls."""
        parts = f"{self.mark} {self.opening} {self.between} {self.closing}".split()
        return tuple(sorted(set(parts), key=len, reverse=True))


FORMATS = (
    ToolFormat("Hermes", "<tool_call>", "<tool_call>", "\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    ToolFormat("Mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", "[", ", ", "]", needs_mark=False),
    ToolFormat("Llama 3", '"parameters": ', "<|python_tag|>", "", "; ", "", arguments="parameters", needs_mark=False),
)
"""The formats that the server knows. The first whose sign is in a template is the template's."""

_OTHERS = ("<function=", "[ARGS]")
"""Signs of formats that share a mark with one of ``FORMATS``, and whose calls are no JSON."""


def format_of(tokenizer, conversation: Conversation) -> ToolFormat:
    """The format in which the tokenizer's chat template asks for calls.

    ``conversation``: has tools.

    Raises RequestError for a template that leaves out tools, and for one of an unknown format.
    """
    arguments = {name: value for name, value in conversation.arguments.items() if name != "tools"}
    without = dataclasses.replace(conversation, arguments=arguments)
    if conversation.text(tokenizer) == without.text(tokenizer):
        raise RequestError(
            "tools are left out by the chat template; leave them out, use a model made for tools, or give the server "
            "another --chat-template"
        )
    template = str(tokenizer.chat_template)
    known = [one for one in FORMATS if one.sign in template]
    if not known or any(sign in template for sign in _OTHERS):
        names = ", ".join(one.name for one in FORMATS)
        raise RequestError(
            f"tools: the chat template writes calls in a form that is none of {names}; leave tools out, or give the "
            "server another --chat-template"
        )
    return known[0]

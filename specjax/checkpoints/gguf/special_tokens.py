"""The special tokens of a GGUF file."""

from .reader import GgufFile

_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""The roles of special tokens in transformers, and their names in the keys of a file."""

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<turn|>", "<|tool_response>")
"""Tokens that end the model's turn where the chat template writes them."""

_CALLS = "<|call|>"
"""A token of gpt-oss, whose <|end|> ends a message within a turn."""


def special_tokens(file: GgufFile) -> dict[str, str]:
    """The texts of the special tokens that the file has, by their roles in transformers."""
    tokens = _tokens(file)
    ids = {role: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for role, name in _ROLES.items()}
    return {role: tokens[i] for role, i in ids.items() if type(i) is int and 0 <= i < len(tokens)}


def special_ids(file: GgufFile) -> dict[str, int | list[int] | None]:
    """``bos_token_id`` and ``eos_token_id``, the tokens that end a text or the model's turn.

    Beside the file's end of a text, of a turn and of a message for tools, these are the end of a
    turn that the chat template writes. A file made of a base model's tokenizer may name that one
    in the template alone.
    """
    get = lambda name: file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = _tokens(file)
    template = str(file.metadata.get("tokenizer.chat_template", ""))
    ends = [get(name) for name in ("eos", "eot", "eom")]
    written = [end for end in _TURN_ENDS if end in template and _CALLS not in template]
    ends += [tokens.index(end) for end in written if end in tokens]
    return {"bos_token_id": get("bos"), "eos_token_id": list(dict.fromkeys(i for i in ends if i is not None))}


def _tokens(file: GgufFile) -> list[str]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, list) else []

"""Chat templates and a tokenizer of bytes for them."""

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

GENERATION = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""CHATML, with the marks by which transformers finds the answers."""

REASONING = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] if loop.last else m['content'].split('</think>')[-1] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""CHATML, without the reasoning of earlier turns."""


TOOLS = """{% if tools %}<|im_start|>tools
{{ tools | tojson }} as <tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] == 'fail' %}{{ raise_exception('this I refuse') }}{% endif %}{{ m['content'] }}\
{% for call in m['tool_calls'] or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if mood %}({{ mood }}){% endif %}{% endif %}"""
"""A template of Hermes' form with a variable of its own."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bonn", "Ulm"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}


@functools.cache
def chat_tokenizer(template: str | None, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with a chat template, and with tokens of two letters for ``merges``."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*letters, *("".join(pair) for pair in merges)])}
    backend = Tokenizer(models.BPE(vocab, list(merges)))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)  # as GPT-2: offsets leave out spaces
    names = [
        "<|begin|>",
        "<|end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    backend.add_special_tokens(names)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=names[0], eos_token=names[1], clean_up_tokenization_spaces=False
    )
    fast.chat_template = template
    return fast


def turns(*texts: str) -> list[dict]:
    """A conversation that the user begins."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

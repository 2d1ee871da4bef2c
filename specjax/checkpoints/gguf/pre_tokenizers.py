"""How byte-level tokenizers of GGUF files split a text before merges: ``tokenizer.ggml.pre``.

The expressions are those of the published tokenizers, whose names llama.cpp gives.
"""

import dataclasses

_CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CL100K = rf"(?i:{_CONTRACTION})|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_ENDS}"
_QWEN2 = rf"(?i:{_CONTRACTION})|{_WORD}|\p{{N}}|{_SIGNS}|{_ENDS}"
_SEED = rf"(?i:{_CONTRACTION})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|{_ENDS}"
_QWEN35 = (
    rf"(?i:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"]
_O200K_END = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDS}"
_O200K = "|".join([*(f"{case}(?i:{_CONTRACTION})?" for case in _CASES), r"\p{N}{1,3}", _O200K_END])
_TEKKEN = "|".join([*_CASES, r"\p{N}", _O200K_END])
_CJK = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"
_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK_V3 = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_ENDS}"
)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_CASED = r"(?:(?![\x{10D0}-\x{10FF}\x{1D400}-\x{1D7CB}])[\p{Lu}\p{Ll}\p{Lt}])"
"""DeepSeek's letters: those with case, without small Georgian and mathematical ones."""

_DEEPSEEK_SIGNS = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
_OLD_CJK = r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]+"


@dataclasses.dataclass(frozen=True)
class PreTokenizer:
    """How a text is split.

    Attributes:
      splits: expressions that split the text one after another.
      nfc: whether the text is composed first (Unicode NFC).
      whole: whether a part that is itself a token is kept without merges (``ignore_merges``).
      bos: whether a text begins with the BOS token, if the file does not say.
    """

    splits: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    bos: bool = False


_KINDS = {
    PreTokenizer((_GPT2,)): "default gpt-2 gpt2 phi-2 mpt jais",
    PreTokenizer((_GPT2,), nfc=True): "olmo",
    PreTokenizer((_CL100K,), whole=True, bos=True): "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral",
    PreTokenizer((_CL100K,)): "dbrx smaug-bpe glm4 chatglm-bpe lfm2",
    PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    PreTokenizer((_BLOOM,)): "bloom",
    PreTokenizer((r"\p{N}", _GPT2)): "starcoder refact command-r smollm codeshell exaone",
    PreTokenizer((_QWEN2,), nfc=True): "qwen2 deepseek-r1-qwen stablelm2 megrez",
    PreTokenizer((_SEED,)): "seed-coder",
    PreTokenizer((_QWEN35,), nfc=True): "qwen35",
    PreTokenizer((_TEKKEN,), whole=True, bos=True): "tekken",
    PreTokenizer((_O200K,)): "gpt-4o llama4 kanana2 minimax-m2",
    PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK_V3)): "deepseek-v3 hunyuan-dense",
    PreTokenizer(("[\r\n]", rf"\s?{_CASED}+", _DEEPSEEK_SIGNS, r"\s+$", _OLD_CJK, r"\p{N}")): "deepseek-llm",
    PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _OLD_CJK, r"\p{N}")): "deepseek-coder",
}  # fmt: skip
PRE_TOKENIZERS = {name: kind for kind, names in _KINDS.items() for name in names.split()}
"""The supported values of ``tokenizer.ggml.pre``."""

"""The tokenizer in the metadata of a GGUF file."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ...errors import CheckpointError
from ..json_fields import show
from .pre_tokenizers import PRE_TOKENIZERS
from .reader import GgufFile
from .special_tokens import special_tokens

if TYPE_CHECKING:
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

_CONTROL, _USER_DEFINED = 3, 4
"""Values of ``tokenizer.ggml.token_type``: tokens that stand whole in a text."""

_PADDING = re.compile(r"\[PAD\d+\]")
_SENTINELS = 100
"""T5's tokens ``<extra_id_99>`` to ``<extra_id_0>``, the first that a file names as padding."""

_SPACE = "\u2581"
"""SentencePiece's letter for a space."""


def read_gguf_tokenizer(file: GgufFile) -> "PreTrainedTokenizerBase":
    """The tokenizer with the special tokens and the chat template of the file.

    Raises CheckpointError for a kind of tokenizer or of splits that is not supported, and for
    metadata that are missing or do not fit together.
    """
    try:
        return _read(file)
    except CheckpointError:
        raise
    except Exception as error:  # the package tokenizers raises Exception itself
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{file.path}: tokenizer.ggml is damaged ({reason}); download it again") from None


def _read(file: GgufFile) -> "PreTrainedTokenizerBase":
    # Here, because it imports torch if it is installed.
    from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

    kind = _need(file, "model")
    if kind not in _BUILDERS:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.model is {show(kind)}; it must be one of {', '.join(_BUILDERS)}"
        )
    tokenizer = _BUILDERS[kind](file)
    tokens, kinds = _need(file, "tokens"), _get(file, "token_type", ())
    for special, wanted in ((True, _CONTROL), (False, _USER_DEFINED)):
        names = [x for x, kind in zip(tokens, kinds) if kind == wanted and tokenizer.token_to_id(x) is not None]
        added = [AddedToken(name, normalized=False, special=special) for name in names]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    roles = special_tokens(file)
    _add_ends(tokenizer, file, roles)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **roles,
    )


def _get(file: GgufFile, name: str, default: Any = None) -> Any:
    return file.metadata.get(f"tokenizer.ggml.{name}", default)


def _need(file: GgufFile, name: str) -> Any:
    value = _get(file, name)
    if value is None:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.{name} is missing; use a file with a tokenizer")
    return value


def _byte_level(file: GgufFile) -> Tokenizer:
    """BPE of bytes, as GPT-2's."""
    name = _get(file, "pre", "default")
    if name not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.pre is {show(name)}; it must be one of {', '.join(PRE_TOKENIZERS)}"
        )
    pre = PRE_TOKENIZERS[name]
    vocab = {token: i for i, token in enumerate(_need(file, "tokens"))}
    merges = [tuple(merge.split(" ")) for merge in _need(file, "merges")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre.whole))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    prefix = bool(_get(file, "add_space_prefix", False))
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile) -> Tokenizer:
    """BPE of letters with single bytes for unknown ones, as SentencePiece's.

    Two pieces are merged where the whole is a token. The score of the whole gives the order. The
    files of Gemma 4 list the merges.
    """
    tokens, scores = _need(file, "tokens"), _need(file, "scores")
    family = file.metadata["general.architecture"]
    if family.startswith("gemma"):
        # Files have runs of spaces as they are, with a score outside the order. Gemma's tokens
        # stand in the order of its merges.
        tokens = [_SPACE * len(token) if token.isspace() and set(token) == {" "} else token for token in tokens]
        scores = range(0, -len(tokens), -1)
    vocab = {token: i for i, token in enumerate(tokens)}
    listed = _get(file, "merges")
    merges = [tuple(merge.split(" ")) for merge in listed] if listed else _merges(vocab, dict(zip(tokens, scores)))
    unknown = special_tokens(file).get("unk_token")
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(_get(file, "add_space_prefix", True))
    if family.startswith("gemma") or not prefix:
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    elif family == "phi3":  # its published tokenizer adds a space to every part between special tokens
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, "first", split=False)
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _unigram(file: GgufFile) -> Tokenizer:
    """The likeliest pieces, as T5's. Files have its sentinels as padding."""
    tokens = list(_need(file, "tokens"))
    padding = [i for i, token in enumerate(tokens) if _PADDING.fullmatch(token)][:_SENTINELS]
    for number, i in enumerate(padding, 1):
        tokens[i] = f"<extra_id_{_SENTINELS - number}>"
    pieces = [*zip(tokens, _need(file, "scores"))]
    tokenizer = Tokenizer(models.Unigram(pieces, _need(file, "unknown_token_id"), False))
    if letters := _get(file, "precompiled_charsmap"):
        tokenizer.normalizer = normalizers.Precompiled(bytes(letters))
    words = pre_tokenizers.Metaspace(_SPACE, "always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    tokenizer.decoder = decoders.Metaspace(_SPACE, "always")
    tokenizer.add_special_tokens([AddedToken(tokens[i], normalized=False) for i in padding])
    return tokenizer


def _merges(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """All pairs of tokens whose whole is a token, the whole with the highest score first."""
    merges = []
    for whole, score in scores.items():
        for cut in range(1, len(whole)):
            left, right = whole[:cut], whole[cut:]
            if left in vocab and right in vocab:
                merges.append((-score, vocab[whole], vocab[left], vocab[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _add_ends(tokenizer: Tokenizer, file: GgufFile, roles: dict[str, str]) -> None:
    """Lets texts begin and end with the tokens that the file says."""
    pre, kind = PRE_TOKENIZERS.get(_get(file, "pre", "default")), _get(file, "model")
    begins = pre.bos if kind == "gpt2" and pre else kind != "t5"
    first = ["bos_token"] if _get(file, "add_bos_token", begins) and "bos_token" in roles else []
    last = ["eos_token"] if _get(file, "add_eos_token", kind == "t5") and "eos_token" in roles else []
    if not first and not last:
        return
    around = lambda text: [*(roles[role] for role in first), text, *(roles[role] for role in last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around("$A"),
        pair=around("$A") + [f"{part}:1" for part in around("$B")],
        special_tokens=[(roles[role], tokenizer.token_to_id(roles[role])) for role in (*first, *last)],
    )


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _sentencepiece, "t5": _unigram}
"""The supported values of ``tokenizer.ggml.model``."""

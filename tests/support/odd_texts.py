"""Strings that tokenizers split differently: spaces, digits, code, emoji, scripts without spaces."""

import random

PARTS = [
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u200b", "\u3000", " a", "Hello", "hello world", "HELLO",
    "don't", "I'LL", "we've", "naïve", "Straße", "éa", "e\u0301", "ﬁ", "Ωmega", "привет", "ქართული", "123", "1", "3.14159",
    "1,000,000", "2026-11-29", "٣٤", "²", "½", "x=1", "def f(x):\n    return x**2\n", "if a<=b and c!=d:", "__init__", "->",
    "{}[]();", "#!/bin/sh", "http://a.b/c?d=e&f", "a_b", "camelCase", "\\n", "<s>", "</s>", "<unk>", "<0x0A>", "▁", "😀", "👩‍👩‍👧",
    "🇩🇪", "🤷🏽", "中文", "你好，世界", "。", "日本語です", "カタカナ", "한국어", "ไทย", "हिन्दी", "العربية", "...", "—", "“q”",
]  # fmt: skip


def odd_texts(count: int, more: tuple[str, ...] = (), seed: int = 0) -> list[str]:
    """Random strings of up to twelve parts, after the empty one and each part alone."""
    rng = random.Random(seed)
    parts = [*PARTS, *more]
    mixed = ["".join(rng.choices(parts, k=rng.randrange(2, 13))) for _ in range(count)]
    return ["", *parts, *mixed][:count]

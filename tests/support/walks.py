"""Random texts that an automaton accepts, for tests that judge them by other means."""

import numpy as np


def distances(moves: np.ndarray, final: np.ndarray) -> np.ndarray:
    """Int [S], bytes from each state to the nearest full match; a huge number where there is none."""
    far = np.where(final, 0, 10**9)
    while True:
        nearer = np.minimum(far, np.where(moves >= 0, far[np.maximum(moves, 0)] + 1, 10**9).min(1))
        if np.array_equal(nearer, far):
            return far
        far = nearer


def random_texts(moves: np.ndarray, final: np.ndarray, count: int, longest: int = 40, seed: int = 0) -> list[str]:
    """Texts that a byte automaton accepts. Steps are random up to ``longest`` bytes and then lead to the nearest match."""
    rng, far, texts = np.random.default_rng(seed), distances(moves, final), []
    for _ in range(count):
        state, text = 0, b""
        while True:
            ways = [b for b in np.flatnonzero(moves[state] >= 0) if far[moves[state, b]] < 10**9]
            if final[state] and (not ways or len(text) >= longest or rng.random() < 0.2):
                break
            if len(text) >= longest:
                ways = [b for b in ways if far[moves[state, b]] < far[state]]
            byte = int(rng.choice(ways))
            text, state = text + bytes([byte]), moves[state, byte]
        texts.append(text.decode())
    return texts


def accepts(moves: np.ndarray, final: np.ndarray, text: str) -> bool:
    """Whether a byte automaton accepts ``text`` in full."""
    state = 0
    for byte in text.encode(errors="surrogatepass"):
        state = moves[state, byte]
        if state < 0:
            return False
    return bool(final[state])

"""The reasoning before an answer, which thinking models write between two marks."""

BEGIN, END = "<think>", "</think>"


def held_back(text: str, mark: str) -> int:
    """The length of the end of ``text`` that may be the beginning of ``mark``."""
    return max((n for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)


class ThoughtReader:
    """Splits a text into its reasoning and its answer while it arrives.

    Args:
      is_open: whether the prompt ends with the first mark.
    """

    def __init__(self, is_open: bool):
        self._text = ""
        self._part = "reasoning" if is_open else "begin"

    def feed(self, piece: str) -> tuple[str, str]:
        """The next pieces of the reasoning and of the answer."""
        self._text += piece
        if self._part == "begin":
            self._begin()
        reasoning = self._take_reasoning() if self._part == "reasoning" else ""
        if self._part == "blanks":  # between the mark and the answer
            self._text = self._text.lstrip()
            self._part = "answer" if self._text else self._part
        answer = self._text if self._part == "answer" else ""
        self._text = self._text[len(answer) :]
        return reasoning, answer

    def end(self) -> tuple[str, str]:
        """The pieces that were held back until the end of the text."""
        rest = self._text
        self._text = ""
        return (rest, "") if self._part == "reasoning" else ("", rest)

    def _begin(self) -> None:
        begun = self._text.lstrip()
        if begun.startswith(BEGIN):
            self._text = begun.removeprefix(BEGIN)
            self._part = "reasoning"
        elif not BEGIN.startswith(begun):
            self._part = "answer"

    def _take_reasoning(self) -> str:
        """The reasoning up to its mark, as far as it has arrived."""
        if END in self._text:
            reasoning, _, self._text = self._text.partition(END)
            self._part = "blanks"
            return reasoning
        keep = len(self._text) - held_back(self._text, END)
        reasoning = self._text[:keep]
        self._text = self._text[keep:]
        return reasoning

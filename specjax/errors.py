"""The errors that specjax raises.

Every message is one line that names the problem and the mend. The command line prints the message
and exits with the error's ``exit_code``.
"""

LONGEST = 440
"""The most characters of a message."""


def one_line(message: object) -> str:
    """A message on one line of at most ``LONGEST`` characters.

    The middle of a longer one is left out. So its beginning still names the problem, and its end
    the mend. Characters that cannot be printed are written out.
    """
    text = " ".join(str(message).split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[5 - LONGEST // 2 :]}"


class SpecjaxError(ValueError):
    """The base class of all errors that a user can cause and mend.

    The message may hold values of users of any length, see ``one_line``.
    """

    exit_code = 2

    def __init__(self, message: object = ""):
        super().__init__(one_line(message))


class ConfigError(SpecjaxError):
    """A model configuration has an option that specjax does not support."""


class CheckpointError(SpecjaxError):
    """Weights or tokenizer files are missing or damaged, or do not fit their configuration."""


class StorageError(CheckpointError):
    """The disk is full."""

    exit_code = 1


class HostError(SpecjaxError):
    """The processes of several hosts could not join, or one of them has died."""

    exit_code = 1


class RequestError(SpecjaxError):
    """An option, a prompt or a combination of models cannot be decoded."""


class NumericsError(SpecjaxError):
    """The model produced NaN instead of probabilities, or the options allowed no token."""


class CancelledError(SpecjaxError):
    """The result of a cancelled request was asked for."""


class SpecjaxWarning(UserWarning):
    """A fact that the user should know. The command line prints it in one line."""

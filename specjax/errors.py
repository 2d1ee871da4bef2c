"""The errors that specjax raises.

Every message is one line that names the problem and the mend. The command line prints the message
and exits with the error's ``exit_code``.
"""


class SpecjaxError(ValueError):
    """The base class of all errors that a user can cause and mend."""

    exit_code = 2


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

"""What specjax raises.

Every message is one line that names the problem and the mend; the command line prints it and exits
with its ``exit_code``.
"""


class SpecjaxError(ValueError):
    """Base of all errors that a user can cause and mend."""

    exit_code = 2


class ConfigError(SpecjaxError):
    """A model configuration that specjax does not support, named by its option."""


class CheckpointError(SpecjaxError):
    """Weights or tokenizer files that are missing, damaged or do not fit their configuration."""


class StorageError(CheckpointError):
    """A disk that took no more while something was written to it."""

    exit_code = 1


class RequestError(SpecjaxError):
    """An option, prompt or combination of models that cannot be decoded."""


class NumericsError(SpecjaxError):
    """The model produced NaN where probabilities were needed."""

"""What specjax raises. Every message is one line that names the problem and the mend; the command line prints it and exits with 2."""


class SpecjaxError(ValueError):
    """Base of all errors that a user can cause and mend."""


class ConfigError(SpecjaxError):
    """A model configuration that specjax does not support, named by its option."""


class CheckpointError(SpecjaxError):
    """Weights or tokenizer files that are missing, damaged or do not fit their configuration."""


class RequestError(SpecjaxError):
    """An option, prompt or combination of models that cannot be decoded."""


class NumericsError(SpecjaxError):
    """The model produced NaN where probabilities were needed."""

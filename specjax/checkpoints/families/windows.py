"""The attention windows of layers, as ``layer_types`` and ``sliding_window`` give them."""

from ...errors import ConfigError
from ...models.config import ModelConfig

Windows = tuple[int | None, ...]


def read_windows(options: dict, where: str, default: Windows) -> Windows:
    """The attention window of each layer in tokens, None for a layer that attends to all tokens.

    ``default`` holds where the file has no ``layer_types``. Raises ConfigError for a list of
    another length, and for windows without a size.
    """
    layers = options["num_hidden_layers"]
    window = options["sliding_window"]
    kinds = options["layer_types"]
    if kinds is None:
        return default
    if len(kinds) != layers:
        raise ConfigError(f"{where}: layer_types has {len(kinds)} entries; give one for each of the {layers} layers")
    if "sliding_attention" in kinds and not window:
        raise ConfigError(f"{where}: sliding_window is null; layer_types names sliding_attention, which needs it")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def every(layers: int, window: int | None, pattern: int) -> Windows:
    """A window in all layers but each ``pattern``-th."""
    return tuple(window if (i + 1) % pattern else None for i in range(layers))


def layer_types(config: ModelConfig) -> list[str]:
    """The option ``layer_types`` of a configuration."""
    windows = config.windows or (None,) * config.num_layers
    return ["sliding_attention" if window else "full_attention" for window in windows]

"""Reads and writes the options of rotary positions in config.json."""

from ..errors import ConfigError
from ..models.rope import Rope
from .json_fields import read_fields
from .schemas import ROPE, ROPE_NEEDS, ROPE_OPTIONS
from .unlisted_options import check_options


def read_rope(options: dict, head_dim: int, where: str, theta: float, rotated: float | None) -> Rope:
    """The rotary positions of a family's options.

    As in transformers, ``rope_scaling`` goes before ``rope_parameters``, and the options in them
    before ``rope_theta`` and ``partial_rotary_factor`` beside them.

    Args:
      options: the options of the family, read.
      theta, rotated: the values where the file gives none; ``rotated`` None for a family that
        rotates whole heads only.

    Raises ConfigError for an option that is unknown, missing or out of range.
    """
    within = "rope_scaling" if options.get("rope_scaling") else "rope_parameters"
    raw = {"rope_theta": options.get("rope_theta") or theta}
    raw |= options.get(within) or {}
    if rotated is not None:
        raw["partial_rotary_factor"] = raw.get("partial_rotary_factor", options.get("partial_rotary_factor") or rotated)
    return read_table(raw, head_dim, options, where, within, partly=rotated is not None)


def read_table(raw: dict, head_dim: int, options: dict, where: str, within: str, partly: bool = False) -> Rope:
    """The rotary positions in one table of options.

    Args:
      raw: the table, with all defaults of the family.
      options: the options beside it. ``original_max_position_embeddings`` there goes first.
      within: the name of the table, for messages.
      partly: whether the family may rotate a part of each head.
    """
    known = ROPE if partly else {name: field for name, field in ROPE.items() if name != "partial_rotary_factor"}
    check_options(raw, known, f"{where}: {within}")
    fields = {name: value for name, value in read_fields(raw, ROPE, where, within).items() if value is not None}
    kind = fields.get("rope_type") or fields.get("type") or "default"
    for name in ROPE_NEEDS.get(kind, ()):
        if name not in fields:
            raise ConfigError(f"{where}: {within}.{name} is missing; rope scaling {kind!r} needs it")
    trained_positions = options["max_position_embeddings"]
    name = "original_max_position_embeddings"
    fields[name] = options.get(name) or fields.get(name, trained_positions)
    if kind == "longrope":
        fields.setdefault("factor", trained_positions / fields[name])
        fields |= {name: tuple(fields[name]) for name in ("short_factor", "long_factor")}
    rope_fields = {name: fields[name] for name in ROPE_OPTIONS[kind] if name in fields}
    rope = Rope(fields["rope_theta"], kind, **rope_fields, rotated=fields["partial_rotary_factor"] if partly else 1.0)
    _check(rope, head_dim, where, within)
    return rope


def _check(rope: Rope, head_dim: int, where: str, within: str) -> None:
    """Raises ConfigError for options that do not fit together."""
    kind = rope.rope_type
    size = rope.rotated_size(head_dim)
    if kind == "llama3" and rope.low_freq_factor > rope.high_freq_factor:  # equal in Llama 4
        raise ConfigError(
            f"{where}: {within}.high_freq_factor is {rope.high_freq_factor}; it must be at least low_freq_factor"
        )
    if kind == "yarn" and rope.beta_slow > rope.beta_fast:  # equal in Kimi K2
        raise ConfigError(f"{where}: {within}.beta_fast is {rope.beta_fast}; it must be at least beta_slow")
    if kind == "dynamic" and (rope.factor < 1 or head_dim < 4):
        raise ConfigError(
            f"{where}: {within}.rope_type 'dynamic' needs a factor of at least 1 and a head_dim of at least 4"
        )
    if not size or size % 2 and kind != "proportional":
        raise ConfigError(
            f"{where}: {within}.partial_rotary_factor is {rope.rotated}; it must give an even number of dimensions of "
            f"head_dim, {head_dim}"
        )
    for name in ("short_factor", "long_factor"):
        if kind == "longrope" and len(getattr(rope, name)) != size // 2:
            raise ConfigError(
                f"{where}: {within}.{name} has {len(getattr(rope, name))} entries; it must have {size // 2}, one for "
                "each pair of rotated dimensions"
            )


def write_rope(rope: Rope, rotated: float | None = None) -> dict:
    """The table of options from which ``read_table`` reads the same rotary positions.

    ``rotated``: as in ``read_rope``.
    """
    options = {name: getattr(rope, name) for name in ROPE_OPTIONS[rope.rope_type]}
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    if rope.rotated != (1 if rotated is None else rotated):
        options["partial_rotary_factor"] = rope.rotated
    fields = {name: value for name, value in options.items() if value is not None}
    return {"rope_theta": rope.theta, "rope_type": rope.rope_type} | fields

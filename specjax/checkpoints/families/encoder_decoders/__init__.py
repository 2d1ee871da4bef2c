"""What the families of encoder-decoders share: how the decoder's text begins."""

from ....errors import ConfigError
from ....models.config import ModelConfig
from ...json_fields import choice
from ...schemas import TOKEN_ID

BEGIN = {
    "is_encoder_decoder": choice(True).otherwise(True),
    "decoder_start_token_id": TOKEN_ID,
    "forced_bos_token_id": TOKEN_ID,
}
"""The options of all encoder-decoders."""


def decoder_prompt(options: dict, where: str) -> tuple[int, ...]:
    """The tokens with which the decoder's text begins.

    Raises ConfigError where no token begins it, and for one outside the vocabulary.
    """
    start, forced = options["decoder_start_token_id"], options["forced_bos_token_id"]
    start = options.get("pad_token_id") if start is None else start
    if start is None:
        raise ConfigError(
            f"{where}: decoder_start_token_id is null; it must be the token that begins the decoder's text"
        )
    prompt = (start,) if forced is None else (start, forced)
    if max(prompt) >= options["vocab_size"]:
        raise ConfigError(
            f"{where}: decoder_start_token_id and forced_bos_token_id are {prompt}; "
            f"the vocabulary has ids 0 to {options['vocab_size'] - 1}"
        )
    return prompt


def write_prompt(config: ModelConfig) -> dict:
    """The options of ``BEGIN``."""
    start, *forced = config.decoder_prompt
    return {
        "is_encoder_decoder": True,
        "decoder_start_token_id": start,
        "forced_bos_token_id": forced[0] if forced else None,
    }

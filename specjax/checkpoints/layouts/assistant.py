"""Gemma 4's assistants, as transformers writes them."""

import dataclasses

import numpy as np

from ...errors import CheckpointError, ConfigError
from ...heads.assistant import Assistant, AssistantConfig
from ...models.config import ModelConfig
from ..blocks import Names
from ..config import from_hf, to_hf
from ..families import NAMES
from ..json_fields import choice, flag, integer, table
from ..schemas import CORE
from ..unlisted_options import check_options
from .base import WIDTH, Layout, RawCheckpoint

_OWN = {
    "text_config", "backbone_hidden_size", "use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k",
}  # fmt: skip
_FAMILY = "gemma4_text"
_TOKENS = ("_token_id", "_token_index")
"""The ends of the names of special tokens, which the target's file has too."""


class AssistantLayout(Layout):
    """An assistant of Gemma 4.

    The tensors are ``pre_projection``, ``post_projection``, ``model`` and, with
    clusters, ``masked_embedding``. The embeddings in ``model`` serve as the output matrix alone.
    """

    name, kind, default = "gemma4-assistant", "assistant", True

    def matches(self, checkpoint: RawCheckpoint) -> bool:
        return "pre_projection.weight" in checkpoint and "post_projection.weight" in checkpoint

    def config(self, checkpoint: RawCheckpoint, target: ModelConfig) -> AssistantConfig:
        own = {name: value for name, value in checkpoint.raw.items() if not name.endswith(_TOKENS)}
        check_options(own, _OWN | CORE.keys(), checkpoint.where)
        fields = {
            "text_config": table(),
            "backbone_hidden_size": WIDTH.otherwise(1536),
            "use_ordered_embeddings": flag(),
            "num_centroids": integer(1, 1 << 24).otherwise(2048),
            "centroid_intermediate_top_k": integer(1, 1 << 24).otherwise(32),
            "tie_word_embeddings": choice(True).optional(True),
        }
        options = checkpoint.read(checkpoint.raw, fields)
        # The file says that all layers share keys and values. The family knows only layers that
        # share those of an earlier layer.
        inner = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 1}
        text = {"model_type": _FAMILY} | options["text_config"]
        if text.get("hidden_size_per_layer_input"):
            raise ConfigError(f"{checkpoint.where}: hidden_size_per_layer_input must be 0 in an assistant")
        known = text["model_type"] in (_FAMILY, "gemma4_unified_text")
        if not known:
            raise ConfigError(f"{checkpoint.where}: text_config.model_type must be {_FAMILY}")
        layers = from_hf(text | inner | {"model_type": _FAMILY}, f"{checkpoint.where}: text_config")
        mixers = tuple(dataclasses.replace(layer.mixer, reads=0) for layer in layers.layers)
        clusters = options["num_centroids"] if options["use_ordered_embeddings"] else 0
        return AssistantConfig(
            layers.replace(mixers=mixers, tie_embeddings=False),
            target_size=options["backbone_hidden_size"],
            target_layers=target.num_layers,
            clusters=clusters,
            read_clusters=options["centroid_intermediate_top_k"],
        )

    def names(self, config: AssistantConfig, checkpoint: RawCheckpoint | None = None) -> Names:
        layers = {path: names for path, names in NAMES[_FAMILY].items() if path.startswith("layers.N.")}
        return layers | {
            "enter": ["pre_projection.weight"],
            "leave": ["post_projection.weight"],
            "norm": ["model.norm.weight"],
            "head": ["model.embed_tokens.weight"],
            "centroids": ["masked_embedding.centroids.weight"],
            "order": ["masked_embedding.token_ordering"],
        }

    def owns(self, name: str, config: AssistantConfig, checkpoint: RawCheckpoint) -> bool:
        return name != "lm_head.weight"  # a copy of the embeddings

    def check_values(self, module: Assistant, checkpoint: RawCheckpoint) -> None:
        if module.order is None:
            return
        order = np.asarray(module.order[...])
        if not np.array_equal(np.sort(order), np.arange(order.size)):
            raise CheckpointError(
                f"{checkpoint.where}: token_ordering does not list every token once; the file is damaged"
            )

    def complete(self, tensors: dict[str, np.ndarray], config: AssistantConfig) -> dict[str, np.ndarray]:
        order = "masked_embedding.token_ordering"
        return tensors | ({order: tensors[order].astype(np.int64)} if order in tensors else {})

    def raw(self, config: AssistantConfig) -> dict:
        if config.layers.family != _FAMILY:
            raise ConfigError(f"the layout {self.name!r} holds layers of {_FAMILY}, not of {config.layers.family}")
        text = to_hf(config.layers) | {"vocab_size_per_layer_input": 0, "tie_word_embeddings": True}
        return {
            "architectures": ["Gemma4AssistantForCausalLM"],
            "model_type": "gemma4_assistant",
            "backbone_hidden_size": config.target_size,
            "use_ordered_embeddings": config.clusters > 0,
            "num_centroids": config.clusters or 2048,
            "centroid_intermediate_top_k": config.read_clusters,
            "tie_word_embeddings": True,
            "dtype": config.layers.dtype,
            "text_config": text,
        }

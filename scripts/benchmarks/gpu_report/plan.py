"""The extent of the report: the shapes of the models, contexts, trees and repeats."""

import dataclasses

from specjax import ModelConfig
from specjax.models.config import Rope

NODES = (8, 16, 64)
ATTENDED = (1, 16)
ALL_COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"
GRAPHS = {"no graphs": "", "the loop in a graph": ALL_COMMANDS}
"""Values of XLA's option ``xla_gpu_enable_command_buffer``, whose own default is a part of all commands."""

LLAMA_3_8B = ModelConfig(
    "llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32,
    num_kv_heads=8, head_dim=128, max_position_embeddings=8192, norm_eps=1e-5, rope=Rope(theta=500000.0),
)  # fmt: skip
QWEN3_4B = ModelConfig(
    "qwen3", vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_layers=36, num_heads=32,
    num_kv_heads=8, head_dim=128, max_position_embeddings=40960, rope=Rope(theta=1000000.0), tie_embeddings=True,
    qk_norm=True,
)  # fmt: skip
TINY = ModelConfig(
    "llama", vocab_size=61, hidden_size=32, intermediate_size=48, num_layers=1, num_heads=4, num_kv_heads=2,
    head_dim=8, max_position_embeddings=256,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """The extent of a report.

    Attributes:
      models: the shapes of the models, by name.
      contexts: capacities of the cache. The cache is full except for the room that the rounds need.
      nodes: sizes of trees. The time of a tree is divided by the time of one node.
      attended: sizes of trees whose attention to the past is timed.
      rounds: the number of rounds of a timed loop.
      repeats: the number of timed runs, after three untimed ones.
      copied: the bytes of the array whose copy is timed.
      seconds: the time of the whole report. It is less than ten minutes, because a compilation that
        has begun is not stopped.
    """

    models: dict
    contexts: tuple[int, ...] = (1024, 8192)
    nodes: tuple[int, ...] = NODES
    attended: tuple[int, ...] = ATTENDED
    rounds: int = 64
    repeats: int = 10
    copied: int = 4 << 30
    seconds: int = 510


FULL = Plan({"Llama-3-8B": LLAMA_3_8B, "Qwen3-4B": QWEN3_4B})
TOY = Plan(
    {"toy": TINY}, contexts=(128,), nodes=(16,), attended=(16,), rounds=4, repeats=2, copied=1 << 20, seconds=3600
)

"""Torch files of heads: read without torch, and damaged ones refused."""

import json

import numpy as np
import pytest
from support.head_cases import MADE, same_heads
from support.published_heads import DEEP, E, eagle, eagle3, write
from support.torch_files import torch_file

from specjax import load_drafter
from specjax.errors import CheckpointError


@pytest.mark.parametrize(
    "layout, file", [("eagle", "pytorch_model.bin"), ("medusa", "medusa_lm_head.pt"), ("hydra", "hydra_lm_head.pt")]
)
def test_a_torch_file_is_read(tmp_path, layout, file):
    raw, tensors = MADE[layout]()
    made = load_drafter(write(tmp_path / "a", raw, tensors, file), DEEP)
    assert same_heads(made, load_drafter(write(tmp_path / "b", raw, tensors), DEEP))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_torch_itself_writes(tmp_path, dtype):
    """Ordered and plain dictionaries, parameters, views of a shared storage, transposed tensors, integers, booleans."""
    torch = pytest.importorskip(
        "torch", reason="its own files need torch; test_a_torch_file_is_read reads such files without it"
    )
    raw, tensors = eagle3()
    state = {
        name: torch.tensor(x).to(getattr(torch, dtype)) if x.dtype == np.float32 else torch.tensor(x)
        for name, x in tensors.items()
    }
    want = {name: x.to(torch.float32).numpy() if x.is_floating_point() else x.numpy() for name, x in state.items()}
    both = torch.cat([state["norm.weight"], state["midlayer.hidden_norm.weight"]])
    state |= {"norm.weight": both[:E], "midlayer.hidden_norm.weight": both[E:]}
    state["fc.weight"] = torch.nn.Parameter(state["fc.weight"])
    state["lm_head.weight"] = state["lm_head.weight"].T.contiguous().T
    head = load_drafter(write(tmp_path / "b", raw, want), DEEP)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.json").write_text(json.dumps(raw))
    module = torch.nn.Module()  # whose state is an ordered dictionary with attributes
    module.register_buffer("x", torch.ones(2))
    ordered = module.state_dict()
    ordered.update(state)
    del ordered["x"]
    for saved in (state, ordered):
        torch.save(saved, tmp_path / "a/pytorch_model.bin")
        assert same_heads(load_drafter(tmp_path / "a", DEEP), head)


def test_a_file_that_is_not_whole(tmp_path):
    raw, tensors = eagle()
    directory = write(tmp_path / "a", raw, tensors, "pytorch_model.bin")
    whole = (directory / "pytorch_model.bin").read_bytes()
    damaged = {
        "truncated": [whole[:keep] for keep in (0, 5, 3000, len(whole) - 7)] + [b"\x80\x02" + whole[100:200]],
        "corrupt|bytes|holds no|beyond|missing|opcode": [whole[:2000] + whole[2064:]],
        r"holds no data\.pkl": [torch_file(tensors, folder="a/b")],
        "compressed": [torch_file(tensors, compressed=True)],
        "little-endian": [torch_file(tensors, order=b"big")],
    }
    for named, files in damaged.items():
        for content in files:
            (directory / "pytorch_model.bin").write_bytes(content)
            with pytest.raises(CheckpointError, match=named) as error:
                load_drafter(directory, DEEP)
            assert "\n" not in str(error.value)
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load_drafter(directory, DEEP)

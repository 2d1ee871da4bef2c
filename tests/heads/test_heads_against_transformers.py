"""EAGLE, EAGLE-3 and multi-token prediction against layers made of the modules of transformers."""

import numpy as np
import pytest
from heads.test_feature_heads import EAGLE, EAGLE3, LAYERS, MTP, TOKENS, N, close, embedded, found, head_of, linear, rms
from support.numpy_layer import gate_and_up


@pytest.mark.slow
class TestTransformers:
    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch", reason="layers of transformers need torch")

    def test_eagle(self):
        head = head_of(EAGLE)
        layer = self.layer(head.layers[0])
        layer.input_layernorm = self.torch.nn.Identity()
        features, hidden, _ = found(head.config)
        inputs = np.concatenate([embedded(head, TOKENS[1 : N + 1]), np.asarray(features)], -1)
        self.check(hidden, self.run(layer, linear(inputs, head.fc, head.fc_bias)))

    def test_eagle3(self):
        head, eps = head_of(EAGLE3), LAYERS.norm_eps
        first = head.layers[0]
        layer = self.layer(first)
        features, hidden, _ = found(head.config)
        features = np.asarray(features, np.float64)
        read = np.concatenate(
            [rms(embedded(head, TOKENS[1 : N + 1]), first.mixer_norm, eps), rms(features, first.hidden_norm, eps)],
            -1,
        )
        x = features + self.run(layer.self_attn, read)
        with self.torch.no_grad():
            x = x + layer.mlp(layer.post_attention_layernorm(self.torch.tensor(x, dtype=self.torch.float32))).numpy()
        self.check(hidden, x)

    def test_mtp(self):
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

        (head,) = head_of(MTP).modules
        features, hidden, _ = found(MTP)
        parts = []
        for weight, x in (
            (head.embedding_norm, embedded(head, TOKENS[1 : N + 1])),
            (head.hidden_norm, np.asarray(features)),
        ):
            norm = DeepseekV3RMSNorm(32, LAYERS.norm_eps)
            norm.weight.data = self.tensor(weight)
            parts.append(norm(self.torch.tensor(x, dtype=self.torch.float32)).detach().numpy())
        self.check(hidden, self.run(self.layer(head.layers[0]), linear(np.concatenate(parts, -1), head.join)))

    def layer(self, ours):
        """A decoder layer of Llama with our weights and inputs of our width."""
        from transformers.models.llama.configuration_llama import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        c, nn = LAYERS, self.torch.nn
        config = LlamaConfig(
            hidden_size=32, intermediate_size=c.intermediate_size, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
            head_dim=c.head_dim, rms_norm_eps=c.norm_eps, attn_implementation="eager",
        )  # fmt: skip
        layer, self.rotary = LlamaDecoderLayer(config, 0).eval(), LlamaRotaryEmbedding(config)
        K, G, D = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
        qkv = self.tensor(ours.mixer.qkv).reshape(K, G + 2, D, -1)
        gate, up = map(self.torch.tensor, gate_and_up(np.asarray(ours.mlp.gate_up[...]), 0))
        parts = {
            "q_proj": qkv[:, :G],
            "k_proj": qkv[:, G],
            "v_proj": qkv[:, G + 1],
            "o_proj": self.tensor(ours.mixer.out),
        }
        for owner, weights in (
            (layer.self_attn, parts),
            (layer.mlp, {"gate_proj": gate, "up_proj": up, "down_proj": self.tensor(ours.mlp.down)}),
        ):
            for name, weight in weights.items():
                weight = weight.reshape(-1, weight.shape[-1])
                linear = nn.Linear(*reversed(weight.shape), bias=False)
                linear.weight.data = weight
                setattr(owner, name, linear)
        if ours.mixer_norm is not None:
            layer.input_layernorm.weight.data = self.tensor(ours.mixer_norm)
        layer.post_attention_layernorm.weight.data = self.tensor(ours.mlp_norm)
        return layer

    def run(self, module, x) -> np.ndarray:
        """The causal output of a module at N places [N, ...]."""
        torch = self.torch
        x = torch.tensor(x, dtype=torch.float32)[None]
        mask = torch.full((N, N), float("-inf")).triu(1)[None, None]
        with torch.no_grad():
            out = module(
                hidden_states=x, position_embeddings=self.rotary(x, torch.arange(N)[None]), attention_mask=mask
            )
        return (out[0] if isinstance(out, tuple) else out).reshape(N, -1).numpy()

    def tensor(self, param):
        return self.torch.tensor(np.array(param[...]))

    def check(self, hidden, theirs):
        assert close(hidden[:N], np.float64(theirs))

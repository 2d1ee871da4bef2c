"""The embedded head of SmolLM2 beside transformers: accepted drafts by teacher forcing, written from the papers."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.gguf_files import their_model

import specjax
from specjax.checkpoints.hub import find
from specjax.engine import Engine
from specjax.requests.chat import render_chat

pytestmark = pytest.mark.slow

HEAD = "smollm2-135m-instruct-eagle3"
TAPS = (2, 15, 27)
DRAFTED, NEW = 4, 24
QUESTIONS = [
    "Why is the sky blue?", "Write a short letter to a friend.", "What is 17 times 23?", "Name three rivers in Europe.",
    "Explain what a function is.", "Write a Python function that adds two numbers.", "Who wrote Hamlet?",
    "How do I boil an egg?", "Give me a recipe for pancakes.", "What is the capital of Japan?", "Summarize the plot of Cinderella.",
    "Why do leaves fall?", "Translate good morning into French.", "List the planets.", "What is a prime number?",
    "Write a haiku about rain.", "How does a bicycle stay upright?", "What is inflation?", "Describe a lighthouse.",
    "How many days has a leap year?",
]  # fmt: skip


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="models of transformers need torch")


def rms(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def rotate(x, positions):
    """RoPE for x [rows, heads, 64], with SmolLM2's base of 100,000 (RoFormer, section 3.2.2, in halves)."""
    angles = positions[:, None] / 1e5 ** (np.arange(32) / 32)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :32], x[..., 32:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class PlainHead:
    """EAGLE-3 (2503.01840, section 3.1), row by row, from the names of its published checkpoints."""

    def __init__(self, directory, embeddings):
        tensors = {name: np.float64(x) for name, x in load_file(directory / "model.safetensors").items()}
        self.w = {name.removeprefix("midlayer.").removesuffix(".weight"): x for name, x in tensors.items()}
        self.embeddings = embeddings

    def rows(self, features, tokens, start, past):
        """The hidden states of rows from position ``start`` on, and all keys and values."""
        w = self.w
        x = np.concatenate([rms(self.embeddings[tokens], w["input_layernorm"]), rms(features, w["hidden_norm"])], -1)
        places = start + np.arange(len(tokens))
        q = rotate((x @ w["self_attn.q_proj"].T).reshape(-1, 9, 64), places)
        k = rotate((x @ w["self_attn.k_proj"].T).reshape(-1, 3, 64), places)
        v = (x @ w["self_attn.v_proj"].T).reshape(-1, 3, 64)
        k, v = (np.concatenate([old, new]) for old, new in zip(past, (k, v)))
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(3, 1)) / 8
        scores[:, np.arange(len(k)) > places[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        read = np.einsum("hqk,khd->qhd", weights, v.repeat(3, 1)).reshape(len(q), -1)
        x = features + read @ w["self_attn.o_proj"].T
        y = rms(x, w["post_attention_layernorm"])
        gate = y @ w["mlp.gate_proj"].T
        return x + (gate / (1 + np.exp(-gate)) * (y @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T, (k, v)

    def draft(self, taps, text, count):
        """The likeliest chain of ``count`` tokens after ``text``; ``taps`` belong to all its tokens but the last."""
        past = (np.empty((0, 3, 64)),) * 2
        features = np.concatenate(taps, -1) @ self.w["fc"].T
        hidden, past = self.rows(features, np.array(text[1:]), 0, past)
        drafted = []
        for i in range(count):
            best = int((rms(hidden[-1], self.w["norm"]) @ self.w["lm_head"].T).argmax())
            drafted.append(best + int(self.w["d2t"][best]))
            hidden, past = self.rows(hidden[-1:], np.array(drafted[-1:]), len(text) - 1 + i, past)
        return drafted


def test_accepted_drafts_are_those_of_teacher_forcing(torch, smollm2_file):
    """In each round of 20 greedy answers, with the hidden states of transformers' model."""
    target = specjax.load(smollm2_file, dtype="float32")
    engine = Engine(target, "eagle3", HEAD, slots=4, capacity=256, num_speculative_tokens=DRAFTED)
    asked = [render_chat(target.tokenizer, [{"role": "user", "content": question}]) for question in QUESTIONS]
    handles = [engine.submit(prompt, max_new_tokens=NEW, ignore_eos=True) for prompt in asked]
    theirs = their_model(torch, smollm2_file)
    plain = PlainHead(find(HEAD), theirs.get_input_embeddings().weight.detach().numpy().astype(float))
    rounds = right = accepted = 0
    for prompt, handle in zip(asked, handles):
        text = prompt + handle.result().token_ids
        with torch.no_grad():
            states = theirs(torch.tensor([text]), output_hidden_states=True).hidden_states
        taps = [states[i][0].numpy().astype(float) for i in TAPS]
        end = len(prompt)
        for _, count, emitted in handle.rounds:
            if end + DRAFTED >= len(text):
                break
            drafted = plain.draft([tap[: end - 1] for tap in taps], text[:end], DRAFTED)
            expected = next((i for i, token in enumerate(drafted) if text[end + i] != token), DRAFTED)
            rounds, accepted = rounds + 1, accepted + count
            right += expected == count
            end += emitted
    assert rounds > 200 and right / rounds > 0.99  # rounding may turn a choice between two close tokens
    assert accepted / rounds > 0.5

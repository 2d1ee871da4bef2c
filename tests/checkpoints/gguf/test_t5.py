"""GGUF files of T5: logits beside transformers' own reading of them, and ids beside SentencePiece's."""

import io

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from support.gguf_cases import raw_config
from support.gguf_files import random_tensors, write_gguf
from support.odd_texts import PARTS, odd_texts

import specjax
from specjax.checkpoints.convert import convert
from specjax.checkpoints.load import load_tokenizer
from specjax.loop.prefill import read_source

NAMES = ["t5", "t5, gated"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="models of transformers need torch")


def logits(model, source: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The logits [1, N, V] of the decoder's tokens after a source."""
    cache = read_source(model, jnp.asarray(source), jnp.array([source.shape[1]]), dtype="float32")
    count = tokens.shape[1]
    out = model(jnp.asarray(tokens), cache.length[:, None] + jnp.arange(count), jnp.tri(count, dtype=bool), cache)
    return np.asarray(model.logits(out.hidden))


def assert_same_logits(torch, ours, theirs) -> None:
    source, tokens = np.random.default_rng(0).integers(4, 32, (2, 1, 9), np.int32)
    with torch.no_grad():
        expected = theirs(torch.tensor(source).long(), decoder_input_ids=torch.tensor(tokens).long()).logits.numpy()
    found = logits(ours, source, tokens)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_transformers(name, tmp_path, torch):
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    raw = raw_config(name) | {"num_layers": 2}  # it reads as many layers of the decoder as of the encoder
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    config = transformers.T5Config(**raw)
    config.tie_word_embeddings = raw["tie_word_embeddings"]  # it ties them until it has read a checkpoint
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=theirs)["tensors"]
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert not unexpected and all("embed_tokens" in key or key == "lm_head.weight" for key in missing)
    theirs.tie_weights()
    theirs.set_input_embeddings(theirs.shared)
    assert_same_logits(torch, specjax.load(path, dtype="float32").model, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_converted_files(name, tmp_path, torch):
    raw = raw_config(name)
    path = write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw)
    convert(path, tmp_path / "new", "float32")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "new").eval()
    assert_same_logits(torch, specjax.load(path, dtype="float32").model, theirs)


def test_ids_of_sentencepiece(tmp_path):
    sentencepiece, _ = pytest.importorskip("sentencepiece"), pytest.importorskip("google.protobuf")
    from sentencepiece import sentencepiece_model_pb2 as message

    text, learnt = "".join(PARTS).replace("\n", " "), io.BytesIO()
    words = [" ".join(part.split()) for part in odd_texts(300) if part.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text, *words]), model_writer=learnt, vocab_size=300, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, model_type="unigram", normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=learnt.getvalue())
    spec = message.ModelProto.FromString(learnt.getvalue()).normalizer_spec
    pieces = [theirs.id_to_piece(i) for i in range(len(theirs))]

    def more(writer):
        writer.add_tokenizer_model("t5")
        writer.add_token_list(pieces + [f"[PAD{i}]" for i in range(101)])
        writer.add_token_scores([theirs.get_score(i) for i in range(len(pieces))] + [-1e4] * 101)
        writer.add_token_types([3, 3, 2] + [gguf.TokenType.NORMAL] * (len(pieces) - 3) + [5] * 101)
        writer.add_precompiled_charsmap(spec.precompiled_charsmap)
        for add, number in ((writer.add_pad_token_id, 0), (writer.add_eos_token_id, 1), (writer.add_unk_token_id, 2)):
            add(number)

    raw = raw_config("t5") | {"vocab_size": len(pieces) + 101}
    ours = load_tokenizer(write_gguf(tmp_path / "model.gguf", random_tensors(raw), raw, more))[0]
    texts = [text for text in odd_texts(400) if "</s>" not in text and "<unk>" not in text]
    assert ours(texts)["input_ids"] == [[*theirs.encode(text), 1] for text in texts]
    assert ours("<extra_id_99><extra_id_0>")["input_ids"] == [len(pieces), len(pieces) + 99, 1]

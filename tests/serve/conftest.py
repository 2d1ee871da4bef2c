"""A server with random weights whose tokens are bytes.

A random model writes no calls of its own, so calls are enforced, or its text is biased.
"""

import pytest
from support.chat import TOOLS, chat_tokenizer
from support.models import TINY, tiny_model
from support.serving import served

from specjax import Engine, LanguageModel
from specjax.serve.app import make_app


@pytest.fixture(scope="package")
def tokenizer():
    return chat_tokenizer(TOOLS)


@pytest.fixture(scope="package")
def app(tokenizer):
    eos = tokenizer.convert_tokens_to_ids("<|end|>")
    config = TINY.replace(vocab_size=len(tokenizer), eos_token_ids=(eos,), max_position_embeddings=1024)
    model = tiny_model(0, config=config)
    target = LanguageModel(model, model.config, tokenizer, "bytes")
    with Engine(target, method="none", slots=2, chunk=64, logprobs=2) as engine:
        yield make_app(engine)


@pytest.fixture(scope="package")
def url(app):
    with served(app) as url:
        yield url

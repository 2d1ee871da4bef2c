"""A head that learns from recorded features, against forwards without a cache and a training on the whole texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import TINY, disturbed, language_model, random_head, random_prompts
from support.reference import LONGEST
from support.training import are_equal, read_log

from specjax import Generator, Head, RequestError, save_head
from specjax.core.feature_record import FeatureRecording
from specjax.core.stats import total
from specjax.heads import Eagle3Config, Eagle3Head
from specjax.heads.training_forward import read_target
from specjax.training.kinds import KINDS
from specjax.training.kinds.eagle3 import Eagle3Loss
from specjax.training.online.head import OnlineHead
from specjax.training.recipe import make_recipe
from specjax.training.run import train

LENGTH, NEW = 16, 28
PROMPTS = random_prompts(4, 12, seed=3)
OPTIONS = dict(max_new_tokens=[NEW, NEW, NEW, 9], ignore_eos=True, temperature=[0.0, 1.0, 1.0, 1.0], seed=5)
RECIPE = make_recipe(
    dict(kind="online", length=LENGTH, batch=4, steps=120, loss={"steps": 3})
    | dict(optimizer={"name": "adamw", "rate": 3e-3, "warmup": 1}),
    "test",
)


@pytest.fixture(scope="module")
def generator(target) -> Generator:
    config = Eagle3Config(TINY.replace(num_layers=1), TINY.hidden_size, 1, (0, 1), TINY.vocab_size)
    head = Head(random_head(Eagle3Head, config), config, "eagle3")
    return Generator(target, draft=head, tree_nodes=8, tree_depth=3, tree_top_k=3)


@pytest.fixture(scope="module")
def head(generator) -> OnlineHead:
    """A record of ten tokens: it is drained every two rounds."""
    return OnlineHead(generator, RECIPE, tokens=10)


def read_texts(target, results):
    """The texts, int32 [B, LONGEST], and the target's output for them."""
    texts = np.zeros((len(results), LONGEST), np.int32)
    for text, result in zip(texts, results):
        ids = result.prompt_token_ids + result.token_ids
        text[: len(ids)] = ids
    return texts, read_target(target.model, jnp.asarray(texts), (0, 1))


def find_places(windows, texts, starts) -> list[tuple[int, int, int]]:
    """For each window its row, its place there, and its number of tokens. Rows are recorded in order."""
    at, places = list(starts), []
    for window, n in windows:
        (b,) = [b for b, text in enumerate(texts) if text[at[b] : at[b] + n].tolist() == window.tokens[:n].tolist()]
        places.append((b, at[b], n))
        at[b] += n
    return places


@pytest.mark.slow
def test_features_are_those_of_forwards_and_gradients_those_of_a_training_offline(generator, head, target):
    """Every token from the prompt's last to the text's last but one is recorded once, in order.

    The last one is recorded too where the limit of new tokens cut the round after it.
    """
    head.recorded.windows.clear()
    results = generator(PROMPTS, **OPTIONS)
    texts, out = read_texts(target, results)
    places = find_places(head.recorded.windows, texts, [len(result.prompt_token_ids) - 1 for result in results])
    for row, result in enumerate(results):
        assert sum(n for b, _, n in places if b == row) - len(result.token_ids) in (0, 1)
    assert len(places) > 12  # the record was drained several times

    def cut(x):
        """The windows of whole texts [B, T, ...]."""
        pieces = [x[b, at : at + n] for b, at, n in places]
        return jnp.stack([jnp.pad(x, [(0, LENGTH - len(x))] + [(0, 0)] * (x.ndim - 1)) for x in pieces])

    window, learnt = head.recorded.take(np.arange(len(places)))
    np.testing.assert_array_equal(window.tokens, cut(jnp.asarray(texts)))
    np.testing.assert_allclose(window.hidden, cut(out.hidden), atol=1e-3)
    np.testing.assert_allclose(window.taps, cut(jnp.stack(out.taps, 2)), atol=1e-3)

    module = generator.draft.module
    loss = Eagle3Loss(3)
    differentiate = lambda loss: jax.jit(nnx.grad(loss))(module)
    online = differentiate(lambda m: loss(m, window, jnp.float32(learnt), jax.random.key(0), target.model))
    given = target.model, cut(jnp.asarray(texts)), tuple(map(cut, out.taps)), cut(out.hidden), jnp.float32(learnt)
    offline = differentiate(lambda m: Eagle3Loss(3).of_features(m, *given))
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(offline)) > 0.01
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), online, offline)


@pytest.mark.slow
def test_a_head_learns_between_calls_and_texts_stay_the_same(generator, head):
    """Nothing is compiled for the new weights. More drafts are accepted."""
    greedy = dict(OPTIONS, temperature=0.0)
    measure = lambda results: total([result.stats for result in results]).mean_acceptance_length
    before = generator(PROMPTS, **greedy)
    losses = []
    for _ in range(3):
        generator(PROMPTS, **greedy)
        losses += head.learn(40)
    after = generator(PROMPTS, **greedy)
    assert after[0].stats.compile_seconds == 0
    assert [result.token_ids for result in after] == [result.token_ids for result in before]
    assert losses[-1] < losses[0] and measure(after) > 1.1 * measure(before)


def test_refusals_are_one_line(generator, head, target, tmp_path):
    plain = Generator(target, "ngram")
    logging = Generator(target, draft=language_model(disturbed(target.model)), feedback_log=tmp_path)
    unused = OnlineHead(Generator(target, "eagle3", generator.draft))
    eagle3 = make_recipe(dict(kind="eagle3"), "test")
    refused = {
        "with method 'eagle3', not 'ngram'": lambda: OnlineHead(plain),
        "with method 'eagle3', not 'draft_model'": lambda: OnlineHead(logging),
        "by a recipe of kind 'online', not 'eagle3'": lambda: OnlineHead(plain, eagle3),
        "records already": lambda: OnlineHead(generator),
        "no features are recorded; call the generator": lambda: unused.learn(1),
        "reads taps of the target": lambda: FeatureRecording(9).make_empty(1, 3, 0, TINY),
        "3 tokens has no room for a path of 4": lambda: FeatureRecording(3).make_empty(1, 3, 2, TINY),
        "update replaces one": lambda: plain.update(draft=generator.draft.module),
        "another structure": lambda: generator.update(draft=target.model),
        "name it with --draft": lambda: KINDS["online"].shape().make(target, np.empty(0), jax.random.key(0)),
    }
    for message, call in refused.items():
        with pytest.raises(RequestError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_recipe_records_learns_and_continues_after_an_interruption(generator, target, text, tmp_path, saved):
    save_head(generator.draft, tmp_path / "head")
    recipe = dict(
        kind="online",
        head={"start": str(tmp_path / "head")},
        steps=4,
        every=2,
        batch=4,
        length=LENGTH,
        loss={"steps": 3},
    )
    train_to = lambda steps, output: train(
        make_recipe(recipe | dict(steps=steps), "test"), target, [text], tmp_path / output, measure=lambda module: 1.5
    )
    whole = train_to(4, "whole")
    assert [record["loss"] > 0.05 for record in read_log(tmp_path / "whole")] == [True] * 4
    assert not are_equal(whole, generator.draft)
    train_to(2, "halves")
    assert are_equal(train_to(4, "halves"), whole)

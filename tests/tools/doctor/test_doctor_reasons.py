"""Planted faults: each is named by its test, and the sound pair gets no name.

The pairs are the embedded ones, with one fault planted into the draft, its tokenizer, or the texts.
"""

import copy
import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.models import byte_tokenizer, language_model, tiny_model

import specjax
from specjax.checkpoints.heads import load_drafter
from specjax.models.decoder import Decoder
from specjax.models.feed_forwards import ExpertsConfig
from specjax.models.quantised_weights import Quantised
from specjax.models.rounding import quantise_module
from specjax.requests.chat import render_chat
from specjax.tools.doctor import measurements as measured
from specjax.tools.doctor.cost_reasons import experts
from specjax.tools.doctor.distributions import Places
from specjax.tools.doctor.draft_reasons import capacity, unseen_text
from specjax.tools.doctor.head_reasons import head_inputs, other_layers, quantised_target
from specjax.tools.doctor.measurements import Evidence
from specjax.tools.doctor.reasons import find_reasons
from specjax.tools.doctor.vocabulary_reasons import chat_template, lacking_tokens, other_ids, special_tokens
from specjax.tools.evaluate import held_out_prompts

TARGET, DRAFT = specjax.load("tiny-python"), specjax.load("tiny-python-draft")
PAYS = dict(
    batch=1, temperature=0.0, speedup=1.5, tokens_per_round=2.5, plain_ms=2.0, verify_ms=2.4, draft_ms=0.8,
    round_ms=3.2, speedup_if_verification_were_free=1.8, speedup_if_drafting_were_free=2.0,
)  # fmt: skip


def as_text(ids: list[int], prompt: int = 40) -> SimpleNamespace:
    """A text with the fields that the tests read; its first tokens are the prompt."""
    return SimpleNamespace(prompt_token_ids=ids[:prompt], token_ids=ids[prompt:])


def texts_of(count: int = 4, tokens: int = 120) -> list[SimpleNamespace]:
    """Held-out code."""
    pieces = held_out_prompts(TARGET.tokenizer, 40, 200)
    ids = [ids[:tokens] for piece in pieces if len(ids := TARGET.tokenizer.encode(piece)) >= tokens]
    return [as_text(each) for each in ids[:count]]


CODE = texts_of()


def gather(draft, texts=CODE, casts=(PAYS,), own=CODE, target=TARGET, read=True, **more) -> Evidence:
    """The evidence of a draft on texts that are given, without decoding."""
    generator = SimpleNamespace(target=target, drafts=(draft,), drafter=SimpleNamespace(depth=5))
    module = measured.draft_of(generator)
    made = Evidence(generator, module, casts, {0.0: 2.5}, texts, **more)
    places = lambda some: measured.read(generator, module, some)
    return dataclasses.replace(made, user=places(texts), own=places(own)) if read else made


def change(model: Decoder, names: str, function) -> Decoder:
    """The model with ``function`` applied to its parameters whose path has ``names``."""
    graph, params = nnx.split(model)
    at = lambda path, x: function(x) if names in jax.tree_util.keystr(path) else x
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(at, params))


def swap(model: Decoder, a: int, b: int) -> Decoder:
    """The model, for which the tokens a and b have changed their roles."""
    return change(model, "embed", lambda x: x.at[jnp.array([a, b])].set(x[jnp.array([b, a])]))


def named(model: Decoder, tokenizer=None):
    return dataclasses.replace(DRAFT, model=model, config=model.config, tokenizer=tokenizer or DRAFT.tokenizer)


def with_tokens(tokenizer, **changes):
    """A copy of a tokenizer with other special tokens or another chat template."""
    made = copy.deepcopy(tokenizer)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_the_sound_pair_gets_no_reason():
    assert find_reasons(gather(DRAFT)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "block"])
def test_sound_heads_get_no_reason(kind: str):
    assert find_reasons(gather(load_drafter(f"tiny-python-{kind}", TARGET))) == []


def test_permuted_ids_are_named():
    order = np.random.default_rng(0).permutation(DRAFT.config.vocab_size)
    assert other_ids(gather(DRAFT, read=False)) is None
    found = other_ids(gather(named(change(DRAFT.model, "embed", lambda x: x[order])), read=False))
    assert found is not None and found.name == "vocabulary" and "other tokens" in found.text
    random = change(DRAFT.model, "embed", lambda x: jax.random.normal(jax.random.key(0), x.shape, x.dtype))
    assert other_ids(gather(named(random), read=False)) is None  # untrained, and not permuted


def test_missing_tokens_are_named():
    model = tiny_model(num_layers=1)
    target, same = language_model(model), language_model(model)
    texts = [as_text(np.random.default_rng(0).integers(2, 61, 60).tolist())]
    for first, named_so in ((0, False), (1, False), (30, True)):
        draft = dataclasses.replace(same, tokenizer=byte_tokenizer(first=first))
        found = lacking_tokens(gather(draft, texts, target=target, read=False))
        assert (found is not None) == named_so
    assert found.figures["lacking"] == pytest.approx(30 / 59, abs=0.15)


def test_other_special_tokens_are_named():
    """The draft is the target, but another token begins its texts."""
    ours = with_tokens(TARGET.tokenizer, bos_token="<|endoftext|>")
    begin, other = ours.bos_token_id, 4000
    theirs = with_tokens(ours, bos_token=ours.convert_ids_to_tokens(other))
    target = dataclasses.replace(TARGET, tokenizer=ours)
    texts = [as_text(sum(([begin, *text.prompt_token_ids[i : i + 2]] for i in range(0, 40, 2)), [])) for text in CODE]
    sound, wrong = named(TARGET.model, ours), named(swap(TARGET.model, begin, other), theirs)
    assert special_tokens(gather(sound, texts, target=target, read=False)) is None
    found = special_tokens(gather(wrong, texts, target=target, read=False))
    assert found is not None and found.name == "special tokens"
    assert found.figures["acceptance_with_own_tokens"] == pytest.approx(1, abs=1e-3)


def test_another_chat_template_is_named():
    """The draft is the target, but another token marks the turns of its conversations."""
    ours, theirs = (TARGET.tokenizer.convert_ids_to_tokens(token) for token in (3000, 3001))
    template = "{{% for m in messages %}}{mark}{{{{ m['content'] }}}}{mark}{{% endfor %}}"
    pair = [with_tokens(TARGET.tokenizer, chat_template=template.format(mark=mark * 8)) for mark in (ours, theirs)]
    target = dataclasses.replace(TARGET, tokenizer=pair[0])
    talks = [[{"role": "user", "content": f"{word} a file"}] for word in ("read", "write", "open", "close")]
    prompts = [render_chat(pair[0], talk) for talk in talks]
    texts = [as_text([*prompt, *text.token_ids], len(prompt)) for prompt, text in zip(prompts, CODE)]
    wrong, sound = named(swap(TARGET.model, 3000, 3001), pair[1]), named(TARGET.model, pair[0])
    given = dict(target=target, read=False, conversations=talks)
    assert chat_template(gather(sound, texts, **given)) is None
    found = chat_template(gather(wrong, texts, **given))
    assert found is not None and found.figures["acceptance_in_own_template"] > 0.95
    assert chat_template(gather(wrong, texts, target=target, read=False)) is None  # the prompts are no conversations


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "mtp", "block"])
def test_heads_of_another_checkpoint_are_named(kind: str):
    """Another training finds another basis of hidden states: the columns that read them are mixed at random."""
    head = load_drafter(f"tiny-python-{kind}", TARGET)
    rng, name = np.random.default_rng(0), "join" if kind == "mtp" else "fc"
    width = TARGET.config.hidden_size  # of two joined parts, one is the embedding
    parts = lambda size: [start + rng.permutation(width) for start in range(0, size, width)]
    mix = lambda x: x[:, np.concatenate(parts(x.shape[1]))]
    wrong = dataclasses.replace(head, module=change(head.module, name, mix))
    found = head_inputs(gather(wrong, read=False))
    assert found is not None and found.name == "checkpoint"


@pytest.mark.slow
def test_an_untrained_head_does_not_read_its_target():
    head = load_drafter("tiny-python-eagle3", TARGET)
    draw = lambda x: jax.random.normal(jax.random.key(x.size), x.shape, x.dtype)
    noise = lambda x: x + 3 * x.std() * draw(x) if x.ndim > 1 else x
    wrong = dataclasses.replace(head, module=change(head.module, "", noise))
    found = head_inputs(gather(wrong, read=False))
    assert found is not None and found.name == "checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("taps", [(5, 4, 2), (1, 3, 4)])
def test_wrong_layers_are_named(taps: tuple):
    head = load_drafter("tiny-python-eagle3", TARGET)
    assert head.config.taps == (2, 4, 5)
    module = nnx.clone(head.module)
    module.config = config = dataclasses.replace(head.config, taps=taps)
    found = head_inputs(gather(dataclasses.replace(head, module=module, config=config), read=False))
    assert found is not None and found.name == "layer taps" and found.figures["taps"] == (2, 4, 5)


def test_other_layers_lie_within_the_target():
    found = other_layers((0, 2, 4), 4)
    assert (4, 2, 0) in found and (1, 3, 5) not in found and (0, 2, 4) not in found
    assert all(0 <= min(taps) and max(taps) <= 4 for taps in found)


def test_a_text_that_the_draft_never_saw_is_named():
    """The draft is the target without the embeddings of words that the other texts do not use."""
    words = "whale garden winter soldier letter river market children village morning".split()
    prose = [
        as_text(TARGET.tokenizer.encode(" ".join(np.random.default_rng(i).choice(words, 60)))[:120]) for i in range(4)
    ]
    known = {token for text in CODE for token in (*text.prompt_token_ids, *text.token_ids)}
    strange = np.array(sorted({token for text in prose for token in text.prompt_token_ids} - known))
    blind = named(change(TARGET.model, "embed", lambda x: x.at[strange].set(x[np.roll(strange, 1)] * 0)))
    assert unseen_text(gather(blind)) is None
    found = unseen_text(gather(blind, prose))
    assert found is not None and found.name == "text"


def test_a_text_that_is_hard_for_both_is_not_strange_to_the_draft():
    row = np.ones(50)
    easy = [Places(0.6 * row, row, row, (0.8 + 0.01 * i) * row, 2.0 * row, 3.0 * row) for i in range(4)]
    hard = [dataclasses.replace(each, surprise=5.0 * row, draft_surprise=6.0 * row) for each in easy]
    strange = [dataclasses.replace(each, overlap=0.3 * row, divergence=2 * each.divergence) for each in hard]
    given = Evidence(None, None, (PAYS,), {}, (), hard, easy)
    assert unseen_text(given) is None
    assert unseen_text(dataclasses.replace(given, user=strange)) is not None


def test_a_draft_without_capacity_is_named():
    random = Decoder(DRAFT.config, jax.random.key(0))
    loss = PAYS | dict(speedup=0.6, speedup_if_verification_were_free=0.7, speedup_if_drafting_were_free=0.75)
    found = find_reasons(gather(named(random), casts=(loss,)))
    assert [reason.name for reason in found] == ["capacity", "drafting"]
    assert capacity(gather(DRAFT, casts=(loss,))) is None  # it accepts what would pay


def test_expenses_are_named_where_they_decide():
    names = lambda *casts: [reason.name for reason in find_reasons(gather(DRAFT, casts=casts, read=False))]
    large = PAYS | dict(batch=32, speedup=0.4, verify_ms=20.0, speedup_if_verification_were_free=1.3)
    large |= dict(speedup_if_drafting_were_free=0.45)
    assert names(PAYS, large) == ["verification"]
    slow = PAYS | dict(speedup=0.5, speedup_if_drafting_were_free=1.4, speedup_if_verification_were_free=0.55)
    assert names(slow) == ["drafting"]
    hot = PAYS | dict(temperature=2.0, speedup=0.9, tokens_per_round=1.3)
    hot |= dict(speedup_if_drafting_were_free=1.0, speedup_if_verification_were_free=1.0)
    assert names(PAYS, hot) == ["temperature"]
    assert names(PAYS | dict(temperature=2.0, tokens_per_round=1.3)) == []  # it pays all the same


@pytest.mark.slow
def test_a_head_of_full_weights_at_a_quantised_target_is_named():
    """Planted: numbers of four bits are rounded to multiples of four, so two bits are left. int8 loses nothing."""
    head = load_drafter("tiny-python-eagle3", TARGET)
    coarse = quantise_module(TARGET.model, "int4")
    is_weight = lambda leaf: isinstance(leaf, Quantised)
    cut = lambda leaf: leaf.replace(values=leaf.values & 0xCC) if is_weight(leaf) and leaf.scheme == "int4" else leaf
    coarse = jax.tree.map(cut, coarse, is_leaf=is_weight)
    target_of = lambda model: dataclasses.replace(TARGET, model=model, generators={})
    found = quantised_target(gather(head, target=target_of(coarse), read=False))
    assert found is not None and found.name == "quantised target"
    assert found.figures["acceptance_of_full_weights"] > 1.1 * found.figures["acceptance"]
    assert quantised_target(gather(head, target=target_of(quantise_module(TARGET.model, "int8")), read=False)) is None


def test_full_targets_and_targets_without_a_name_get_no_test():
    assert quantised_target(gather(DRAFT, read=False)) is None
    model = quantise_module(TARGET.model, "int8")
    nameless = dataclasses.replace(TARGET, model=model, name="no such model", generators={})
    assert quantised_target(gather(DRAFT, target=nameless, read=False)) is None


def test_a_target_that_reads_more_experts_for_more_nodes_is_named():
    """Planted: 32 experts of which a node reads 2. Five nodes of one row read about nine; 256 rows read all of them."""
    mixture = TARGET.config.replace(num_layers=2, mlps=(ExpertsConfig(32, 2, 512),) * 2)
    loss = PAYS | dict(speedup=0.5, tokens_per_round=1.7, verify_ms=6.0, round_ms=6.8)
    loss |= dict(speedup_if_verification_were_free=1.2, speedup_if_drafting_were_free=0.55)

    def find(config, *casts, nodes=5):
        generator = SimpleNamespace(target=SimpleNamespace(config=config))
        return experts(Evidence(generator, None, casts, {}, (), nodes=nodes))

    found = find(mixture, PAYS, loss)
    assert found is not None and found.name == "experts"
    assert "the 5 nodes of a round read 8.8 of 32 experts in place of 2.0 at batch 1" in found.text
    E, F, V = mixture.hidden_size, 512, mixture.vocab_size
    attention = E * mixture.head_dim * (2 * mixture.num_heads + 2 * mixture.num_kv_heads)
    weights = lambda experts: V * E + 2 * (attention + 32 * E + 3 * E * F * experts)
    ratio = weights(32 * (1 - (30 / 32) ** 5)) / weights(2)
    assert found.figures["settings"][0]["weights_read"] == pytest.approx(ratio)
    assert find(mixture, loss | dict(batch=256)) is None  # plain rounds read all experts
    assert find(mixture, loss, nodes=1) is None
    assert find(mixture, PAYS) is None  # it pays
    assert find(mixture, loss | dict(verify_ms=2.1, round_ms=8.0)) is None  # the draft is slow, and not the experts
    assert find(TARGET.config, loss) is None

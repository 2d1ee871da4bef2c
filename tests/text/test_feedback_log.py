"""The log of rounds: its records against a replay by forwards without a cache, its bounds, and who is refused."""

import dataclasses
import json
import stat

import numpy as np
import pytest
from support.decoding import finish, start
from support.models import TINY, random_prompts
from support.reference import log_softmax, logits_after, rank_tokens

from specjax import Generator, RequestError
from specjax.core.round_record import Recording
from specjax.drafters import DraftModel, make_drafter
from specjax.errors import StorageError
from specjax.parallel import make_draft_mesh, make_mesh, place
from specjax.text.feedback_log import FILES, check_method, identify, open_log

DRAFTS, NEW, TOP = 3, 20, 4
PROMPTS = random_prompts(4, 12, seed=3)
OPTIONS = dict(max_new_tokens=NEW, ignore_eos=True)


def read(directory) -> list[dict]:
    """The arrays of all files, in order."""
    return [dict(np.load(path)) for path in sorted(directory.glob(FILES))]


def make(target, draft, directory, rounds=64, **options) -> Generator:
    """A generator with a small buffer on the device."""
    generator = Generator(target, draft=draft, num_speculative_tokens=DRAFTS, feedback_log=directory, **options)
    object.__setattr__(generator.session.log, "recording", Recording(rounds, TOP))
    return generator


@pytest.fixture(scope="module")
def logging(target, draft, tmp_path_factory):
    """A generator, and its log."""
    directory = tmp_path_factory.mktemp("log")
    return make(target, draft, directory), directory


def split_texts(arrays: dict) -> list[list[int]]:
    return [text.tolist() for text in np.split(arrays["tokens"], np.cumsum(arrays["length"])[:-1])]


def test_greedy_rounds_are_those_of_a_replay(logging, target, draft):
    """Every round is drafted, verified and corrected again by forwards without a cache."""
    generator, directory = logging
    results = generator(PROMPTS, **OPTIONS)
    (arrays,) = read(directory)
    texts, at = split_texts(arrays), 0
    assert texts == [r.prompt_token_ids + r.token_ids for r in results]
    for b, (prompt, whole) in enumerate(zip(PROMPTS, texts)):
        text = list(prompt)
        while len(text) < len(whole):
            chain = []
            for _ in range(DRAFTS):
                chain.append(int(logits_after(draft.model, text + chain).argmax()))
            after = [logits_after(target.model, text + chain[:i]) for i in range(DRAFTS + 1)]
            best = [int(logits.argmax()) for logits in after]
            accepted = next((i for i in range(DRAFTS) if chain[i] != best[i]), DRAFTS)
            assert (arrays["row"][at], arrays["place"][at]) == (b, len(text) - 1)
            assert arrays["drafted"][at].tolist() == chain
            assert (arrays["accepted"][at], arrays["correction"][at]) == (accepted, best[accepted])
            for i in range(accepted + 1):
                wanted = rank_tokens(after[i], TOP)
                assert arrays["top_ids"][at, i].tolist() == wanted
                np.testing.assert_allclose(arrays["top"][at, i], log_softmax(after[i])[wanted], atol=1e-4)
            text += [*chain[:accepted], best[accepted]]
            at += 1
        assert text[: len(whole)] == whole
    assert at == arrays["row"].size == sum(r.stats.target_calls for r in results)
    assert not arrays["temperature"].any() and not arrays["draft"].any()


def test_the_header_names_the_models_and_files_belong_to_the_user(logging, target, draft):
    _, directory = logging
    path = next(directory.glob(FILES))
    header = json.loads(str(np.load(path)["header"]))
    assert header["target"] == identify(target) and header["draft"] == identify(draft) != identify(target)
    assert (header["format"], header["method"], header["overwritten"]) == (1, "draft_model", 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
def test_sampled_rounds_have_the_probabilities_of_the_draft(logging, target, draft):
    """Those of a forward of the draft at its temperature. Rows with other options are marked."""
    generator, directory = logging
    results = generator(PROMPTS, temperature=0.8, top_k=[0, 0, 5, 0], seed=4, **OPTIONS)
    arrays = read(directory)[-1]
    np.testing.assert_allclose(arrays["temperature"], [0.8, 0.8, 0, 0.8])
    texts = split_texts(arrays)
    assert texts == [r.prompt_token_ids + r.token_ids for r in results]
    for i, b in enumerate(arrays["row"]):
        place, accepted = int(arrays["place"][i]), int(arrays["accepted"][i])
        before, chain = texts[b][: place + 1], arrays["drafted"][i].tolist()
        emitted = [*chain[:accepted], int(arrays["correction"][i])]
        assert texts[b][place + 1 : place + 2 + accepted] == emitted[: len(texts[b]) - place - 1]
        if b != 2 and i % 5 == 0:
            law = [log_softmax(logits_after(draft.model, before + chain[:k]) / 0.8)[chain[k]] for k in range(DRAFTS)]
            np.testing.assert_allclose(arrays["draft"][i], law, atol=1e-3)
            top = log_softmax(logits_after(target.model, before + chain[:accepted]))
            ids = arrays["top_ids"][i, accepted]
            np.testing.assert_allclose(arrays["top"][i, accepted], top[ids], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"draft_length": "ema"}, {"method": "ngram,draft_model"}], ids=str)
def test_output_is_the_same_and_a_full_buffer_loses_nothing(target, draft, tmp_path, options):
    """A buffer of two rounds is written several times. All files together hold every round once."""
    plain = Generator(target, draft=draft, num_speculative_tokens=DRAFTS, **options)
    generator = make(target, draft, tmp_path, rounds=2, **options)
    given = dict(OPTIONS, temperature=[0.0, 0.0, 1.0, 1.0])
    wanted, found = plain(PROMPTS, **given), generator(PROMPTS, **given)
    assert [r.token_ids for r in found] == [r.token_ids for r in wanted]
    files = read(tmp_path)
    rounds = [(b, place) for arrays in files for b, place in zip(arrays["row"], arrays["place"])]
    assert len(files) > 1 and len(set(rounds)) == len(rounds) == sum(r.stats.target_calls for r in found)
    drafted = np.concatenate([arrays["drafted"] for arrays in files])
    assert drafted.shape[1] == DRAFTS and (drafted >= 0).sum() == sum(r.stats.drafted for r in found)


@pytest.mark.slow
def test_the_log_is_the_same_on_several_devices(target, draft, tmp_path):
    """Rows split over two devices; and a draft on a device of its own, which drafts ahead."""
    on = lambda model, mesh: dataclasses.replace(model, model=place(model.model, mesh, rows=False))
    apart = on(draft, make_draft_mesh("model=1", None))
    generators = {
        "one": make(target, draft, tmp_path / "one"),
        "rows": make(on(target, make_mesh(data=2)), draft, tmp_path / "rows"),
        "apart": make(target, apart, tmp_path / "apart", draft_ahead=2),
    }
    for generator in generators.values():
        generator(PROMPTS, **OPTIONS, temperature=[0.0, 0.0, 1.0, 1.0])
    one, *others = (read(tmp_path / name)[0] for name in generators)
    for other in others:
        for name in ("tokens", "row", "place", "drafted", "accepted", "correction"):
            np.testing.assert_array_equal(other[name], one[name])


@pytest.mark.slow
def test_a_stream_is_recorded(logging):
    generator, directory = logging
    before = len(read(directory))
    *_, last = generator.stream_results(PROMPTS[0], rounds=2, **OPTIONS)
    (arrays,) = read(directory)[before:]
    assert arrays["row"].size == last.stats.target_calls


@pytest.mark.slow
def test_the_pure_loop_keeps_the_newest_rounds_and_counts_the_others(target, draft):
    drafter = DraftModel(DRAFTS)
    requests = start(target.model, draft.model, drafter, PROMPTS)
    assert requests.rounds is None
    whole, ring = (finish(target.model, draft.model, drafter, record(requests, size)) for size in (64, 5))
    np.testing.assert_array_equal(whole.rounds.count, ring.rounds.count)
    for b, count in enumerate(np.asarray(whole.rounds.count)):
        assert count > 5
        newest = np.arange(count - 5, count)
        np.testing.assert_array_equal(ring.rounds.place[b, newest % 5], whole.rounds.place[b, newest])
        np.testing.assert_array_equal(ring.rounds.drafted[b, newest % 5], whole.rounds.drafted[b, newest])


def record(state, rounds: int):
    """The state with an empty record of rounds."""
    return state.replace(rounds=Recording(rounds, TOP).make_empty(len(PROMPTS), DRAFTS, 0, TINY))


def test_the_oldest_files_are_deleted_beyond_the_size(target, draft, tmp_path):
    log = open_log(tmp_path / "log", "draft_model", make_drafter("draft_model"), target, [draft], 1)
    noise = np.random.default_rng(0).integers(0, 2**31, 2**17)  # half a megabyte, compressed
    for i in range(4):
        log._write(dict(noise=noise, number=i))
    assert [int(arrays["number"]) for arrays in read(log.directory)] == [3]
    assert [path.name for path in log.directory.iterdir() if path.name.startswith(".")] == []


def test_methods_without_such_chains_are_refused():
    for method in ("none", "ngram", "suffix", "tree", "dynamic_tree", "early_exit", "merged", "switch"):
        drafter = make_drafter(method)
        if method == "switch":
            check_method(method, drafter)
            continue
        with pytest.raises(RequestError, match="needs chains that a draft model draws") as error:
            check_method(method, drafter)
        assert "\n" not in str(error.value)


def test_a_directory_that_cannot_be_written_is_refused(target, draft, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="no directory that can be written"):
        Generator(target, draft=draft, feedback_log=tmp_path / "file")
    with pytest.raises(RequestError, match="needs chains"):
        Generator(target, "ngram", feedback_log=tmp_path)
    log = open_log(tmp_path / "log", "draft_model", make_drafter("draft_model"), target, [draft])
    (tmp_path / "log").rmdir()
    with pytest.raises(StorageError, match="cannot be written"):
        log._write(dict(number=1))


def test_new_weights_of_the_target_are_another_target(target, draft, tmp_path):
    generator = Generator(target, draft=draft, feedback_log=tmp_path)
    before = generator.session.log.header
    generator.update(draft.model)  # It has the target's structure.
    after = generator.session.log.header
    assert before["target"]["weights"] != after["target"]["weights"] == identify(draft)["weights"]
    assert before["draft"] == after["draft"]

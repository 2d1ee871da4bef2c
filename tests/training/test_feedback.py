"""Training from a log of rounds: reading, windows, refused logs, and the rise of acceptance."""

import json

import numpy as np
import pytest
from support.models import disturbed, language_model, random_prompts
from support.training import read_log as read_training_log

import specjax
from specjax import Generator, RequestError
from specjax.cli.main import main
from specjax.text.feedback_log import FILES, FORMAT, identify
from specjax.training.feedback.rounds import read_log
from specjax.training.feedback.run import hold_out, train_from_log
from specjax.training.feedback.windows import cut_logged
from specjax.training.recipe import make_recipe

TARGET = dict(name="target", vocab_size=61, weights="abc")
RNG = np.random.default_rng(5)


def write_file(directory, number: int, D=3, K=4, texts=5, **header) -> dict:
    """A file of random texts, each with rounds from the end of its prompt to its end."""
    length, prompt = RNG.integers(20, 40, texts), RNG.integers(1, 9, texts)
    rounds = []
    for b in range(texts):
        place = prompt[b] - 1
        while place < length[b] - 1:
            drafted = RNG.integers(0, D + 1)
            accepted = RNG.integers(0, drafted + 1)
            rounds.append((b, place, drafted, accepted))
            place += accepted + 1
    row, place, drafted, accepted = (np.array(column, np.int32) for column in zip(*rounds))
    n, token = len(rounds), lambda *shape: RNG.integers(0, 61, shape).astype(np.int32)
    arrays = dict(
        tokens=token(length.sum()), length=length, prompt_length=prompt, row=row, place=place, accepted=accepted,
        temperature=np.where(np.arange(texts) % 2, 0.5, 0).astype(np.float32), correction=token(n),
        drafted=np.where(np.arange(D) < drafted[:, None], token(n, D), -1), top_ids=token(n, D + 1, K),
        draft=-RNG.random((n, D)).astype(np.float32), top=-RNG.random((n, D + 1, K)).astype(np.float32),
    )  # fmt: skip
    content = dict(format=FORMAT, target=TARGET, draft=dict(TARGET, weights="d")) | header
    np.savez_compressed(directory / f"rounds-{number:03d}.npz", header=json.dumps(content), **arrays)
    return arrays


def test_files_are_joined_in_order(tmp_path):
    """The second file has longer chains and fewer likeliest tokens."""
    one, two = write_file(tmp_path, 1), write_file(tmp_path, 2, D=5, K=2)
    rounds = read_log(tmp_path, TARGET)
    assert len(rounds.texts) == 10 and np.concatenate(rounds.texts).tolist() == [*one["tokens"], *two["tokens"]]
    n = len(one["row"])
    assert rounds.row.tolist() == [*one["row"], *(two["row"] + 5)]
    np.testing.assert_array_equal(rounds.drafted[:n], np.pad(one["drafted"], ((0, 0), (0, 2)), constant_values=-1))
    np.testing.assert_array_equal(rounds.drafted[n:], two["drafted"])
    np.testing.assert_array_equal(rounds.top[:n, :4], one["top"])
    assert (rounds.top[n:, :, 2:] == -np.inf).all() and rounds.drafts == {"d"}


@pytest.mark.parametrize("fault", ["cut off", "junk", "a text too short", "a token too large", "no arrays"])
def test_a_damaged_file_is_left_out_and_one_line_says_so(tmp_path, capsys, fault):
    whole, last = write_file(tmp_path, 1), tmp_path / "rounds-002.npz"
    write_file(tmp_path, 2)
    found = dict(np.load(last))
    if fault == "cut off":
        last.write_bytes(last.read_bytes()[:-900])
    elif fault == "junk":
        last.write_bytes(b"junk")
    elif fault == "no arrays":
        np.savez(last, header=found["header"])
    else:
        found |= {"tokens": found["tokens"][:-1]} if fault == "a text too short" else {"correction": found["row"] + 61}
        np.savez(last, **found)
    rounds = read_log(tmp_path, TARGET)
    assert rounds.row.size == whole["row"].size
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "rounds-002.npz is cut off; 1 of 2 files are left out" in message
    assert f"{whole['row'].size} rounds are used" in message


def test_other_logs_are_refused_in_one_line(tmp_path):
    cases = {
        "no rounds there": {},
        "with other weights than 'target'": dict(target=dict(TARGET, name="other", weights="x")),
        "the format 2 is unknown": dict(format=2),
    }
    for i, (message, header) in enumerate(cases.items()):
        (tmp_path / str(i)).mkdir()
        write_file(tmp_path / str(i), 1, **header) if header else None
        with pytest.raises(RequestError, match=message) as error:
            read_log(tmp_path / str(i), TARGET)
        assert "\n" not in str(error.value)


def test_windows_are_those_of_a_loop_over_rounds(tmp_path):
    """Windows of 16 tokens, of which texts have two or three; texts 1 and 7 are not asked for."""
    write_file(tmp_path, 1), write_file(tmp_path, 2)
    rounds, S = read_log(tmp_path, TARGET), 16
    texts = np.array([b for b in range(10) if b not in (1, 7)])
    known, reached = {}, {}
    for r, (b, n, accepted) in enumerate(zip(rounds.row, rounds.place, rounds.accepted)):
        chain = [token for token in rounds.drafted[r] if token >= 0]
        for i in range(min(accepted + 1, rounds.texts[b].size - n)):
            drafted = chain[i] if i < len(chain) else None
            free = drafted is not None and rounds.temperature[b] > 0
            known[b, n + i] = dict(
                label=rounds.correction[r] if i == accepted else drafted,
                rejected=i == accepted and drafted is not None,
                top_ids=rounds.top_ids[r, i],
                top=rounds.top[r, i],
                action=drafted if free else -1,
                old=rounds.draft[r, i] if free else 0,
                advantage=accepted - np.mean(reached.get(i, [0])) if free else 0,
                temperature=rounds.temperature[b] if free else 1,
            )
            if free and b in texts:
                reached.setdefault(i, []).append(accepted)
    windows, w = cut_logged(rounds, S, texts), 0
    for b in texts:
        for first in range(0, rounds.texts[b].size, S):
            places = [place for place in range(first, first + S) if (b, place) in known]
            if not places:
                continue
            piece = rounds.texts[b][first : first + S]
            assert windows.tokens[w].tolist() == [*piece, *[0] * (S - piece.size)]
            assert np.flatnonzero(windows.label[w] >= 0).tolist() == [place - first for place in places]
            assert (windows.action[w] >= 0).sum() == sum(known[b, place]["action"] >= 0 for place in places)
            for place in places:
                for name, value in known[b, place].items():
                    np.testing.assert_allclose(getattr(windows, name)[w, place - first], value, rtol=1e-5, atol=1e-6)
            w += 1
    assert w == len(windows.tokens)


def test_the_last_twentieth_of_the_texts_is_held_out(tmp_path):
    [write_file(tmp_path, i) for i in range(8)]
    rounds = read_log(tmp_path, TARGET)
    texts, prompts = hold_out(rounds, 16)
    assert texts.tolist() == list(range(38))
    assert prompts == [rounds.texts[b][: rounds.prompts[b]].tolist() for b in (38, 39)]
    assert hold_out(rounds, 0)[0].size == 40 and hold_out(rounds, 1)[0].size == 38


@pytest.fixture(scope="module")
def pair(small, tmp_path_factory):
    """A target, a draft that seldom agrees with it on disk, a generator with a log, and the log."""
    root = tmp_path_factory.mktemp("feedback")
    specjax.save(language_model(disturbed(small.model, 0.7), "draft"), root / "draft")
    generator = Generator(small, draft=str(root / "draft"), num_speculative_tokens=3, feedback_log=root / "log")
    return small, root, generator


PROMPTS = [prompt[:8] for prompt in random_prompts(64, 8, seed=1)]
TABLE = dict(kind="feedback", batch=8, length=40, prompts=0, optimizer=dict(name="adamw", rate=2e-3, warmup=5))


def make(root, **changes):
    return make_recipe(TABLE | dict(head=dict(start=str(root / "draft"))) | changes, "test")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "rate", "least"), [("distill", 2e-3, 1.1), ("pseudo", 2e-3, 1.05), ("policy", 2e-3, 1.02)]
)
def test_a_training_on_a_log_raises_acceptance(pair, tmp_path, objective, rate, least):
    """Four samples of each prompt. A policy learns least from so few rounds: only the drawn tokens teach it."""
    target, root, generator = pair
    options = dict(max_new_tokens=32, temperature=1.0, ignore_eos=True, n=4)
    logged = generator(PROMPTS, seed=list(range(64)), **options)
    steps = 100 if objective == "policy" else 60
    optimizer = dict(name="adamw", rate=rate, warmup=5)
    recipe = make(root, steps=steps, every=steps, loss=dict(objective=objective, replay=0.0), optimizer=optimizer)
    draft = train_from_log(recipe, target, root / "log", output=tmp_path, measure=lambda module: None)
    assert {*read_training_log(tmp_path)[0]} == {"step", "loss", "gradient_norm", "tokens_per_second"}
    after = Generator(target, draft=draft, num_speculative_tokens=3)(PROMPTS, seed=list(range(100, 164)), **options)
    length = lambda results: np.mean([r.stats.mean_acceptance_length for r in results])
    assert length(after) > least * length(logged)


@pytest.mark.slow
def test_the_command_trains_and_refuses_with_one_line(pair, tmp_path, text, capsys):
    target, root, generator = pair
    specjax.save(target, tmp_path / "target")
    greedy = Generator(target, draft=str(root / "draft"), num_speculative_tokens=3, feedback_log=tmp_path / "greedy")
    greedy(PROMPTS, max_new_tokens=8, ignore_eos=True)
    (tmp_path / "policy.toml").write_text(
        "kind = 'feedback'\nlength = 40\n[loss]\nobjective = 'policy'\nreplay = 0.0\n"
    )
    draft, log, sampled = ("--draft", root / "draft"), ("--log", tmp_path / "greedy"), ("--log", root / "log")
    generator(PROMPTS, max_new_tokens=8, temperature=1.0, ignore_eos=True)
    cases = {
        "name it with --log": ("--recipe", "feedback", *draft),
        "leave --log out": ("--recipe", "draft", *log),
        "--draft continues a drafter": ("--recipe", "medusa", *draft),
        "continues a draft; name it with --draft": ("--recipe", "feedback", "--length", 40, *log),
        "no rounds there": ("--recipe", "feedback", "--length", 40, *draft, "--log", tmp_path / "none"),
        "the log has none": ("--recipe", tmp_path / "policy.toml", *draft, *log),
        "another one than": ("--recipe", tmp_path / "policy.toml", "--draft", tmp_path / "target", *sampled),
    }
    start = ["train", "--model", tmp_path / "target", "--output", tmp_path / "out"]
    for message, arguments in cases.items():
        code, error = main([str(a) for a in (*start, *arguments)]), capsys.readouterr().err
        assert code == 2 and error.count("\n") == 1 and error.startswith("specjax: error:"), error
        assert message in error, error
    short = ("--recipe", "feedback", "--steps", 2, "--batch", 4, "--length", 40, "--data", text, "--prompts", 2)
    assert main([str(a) for a in (*start, *short, *draft, *log)]) == 0
    assert read_training_log(tmp_path / "out")[-1]["acceptance"] >= 1
    assert identify(specjax.load(tmp_path / "out"))["weights"] != identify(specjax.load(root / "draft"))["weights"]
    [path.unlink() for path in sorted((tmp_path / "greedy").glob(FILES))[1:]]
    greedy(PROMPTS[:4], max_new_tokens=8, ignore_eos=True)
    assert main([str(a) for a in (*start, *short, *draft, *log)]) == 2
    assert "name another --output" in capsys.readouterr().err

"""Counting, files and the lookup on the device against dictionaries."""

from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import byte_tokenizer
from support.reference import continue_greedily, look_up

from specjax import Generator, RequestError
from specjax.cli.main import main
from specjax.drafters import Ngram, make_drafter
from specjax.drafters.parts import ngram_statistics

V, ROWS, CAPACITY, DRAFTS = 7, 300, 24, 4


def corpus(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.choice(V - 1, size, p=rng.dirichlet(np.ones(V - 1))).tolist() for size in (0, 1, 2, 9, 30, 60)]


GOOD = dict(
    vocab_size=V,
    contexts1=np.array([[1], [2]], np.int32),
    contexts2=np.zeros((0, 2), np.int32),
    successors1=np.array([3, 4], np.int32),
    successors2=np.zeros(0, np.int32),
)
DAMAGED = {
    "text": dict(successors1=np.array(["a", "b"])),
    "fractions": dict(contexts1=np.array([[1.5], [2]])),
    "truth": dict(successors1=np.array([True, False])),
    "too many axes": dict(contexts1=np.zeros((2, 1, 1), int)),
    "one axis": dict(contexts2=np.zeros(0, int)),
    "a number": dict(successors1=np.array(3)),
    "another length": dict(successors1=np.array([3])),
    "not in order": dict(contexts1=np.array([[2], [1]])),
    "second token not in order": dict(contexts2=np.array([[1, 3], [1, 2]]), successors2=np.array([0, 0])),
    "a context twice": dict(contexts1=np.array([[1], [1]])),
    "a token beyond the vocabulary": dict(successors1=np.array([3, V])),
    "a large token": dict(contexts1=np.array([[1], [2**40]])),
    "a negative token": dict(contexts1=np.array([[-1], [2]])),
    "no vocabulary": dict(vocab_size=np.zeros(3)),
}


def test_statistics_without_contexts_of_two_tokens_draft(tmp_path):
    np.savez(tmp_path / "file.npz", **GOOD)
    statistics = ngram_statistics.load(tmp_path / "file.npz", V)
    assert statistics.chain(jnp.array([0, 1]), 3).tolist() == [3, -1, -1]
    counted = ngram_statistics.count_ngrams([[1, 3]], V, 9)
    ngram_statistics.save(counted, V, tmp_path / "counted.npz")
    assert ngram_statistics.load(tmp_path / "counted.npz", V).after(jnp.array([1, 1])) == 3


@pytest.mark.parametrize("fault", DAMAGED)
def test_damaged_statistics_are_refused_as_they_are_read(fault, tmp_path):
    np.savez(tmp_path / "file.npz", **(GOOD | DAMAGED[fault]))
    with pytest.raises(RequestError, match="write them with specjax ngrams") as error:
        ngram_statistics.load(tmp_path / "file.npz", V)
    assert "\n" not in str(error.value)


def most_frequent(texts: list[list[int]], m: int, most: int) -> dict[tuple[int, ...], int]:
    """For the ``most`` contexts of m tokens with the highest count of a next token, that token."""
    counts = Counter(tuple(text[i : i + m + 1]) for text in texts for i in range(len(text) - m))
    best = {}
    for gram, count in counts.items():
        best[gram[:-1]] = min(best.get(gram[:-1], (1, 0)), (-count, gram[-1]))
    kept = sorted(best, key=lambda context: (best[context][0], context))[:most]
    return {context: best[context][1] for context in kept}


def continue_text(text: list[int], tables: list[dict], count: int) -> list[int]:
    drafted = []
    while len(drafted) < count:
        newest = text + drafted
        known = [
            table[tuple(newest[-m:])] for m, table in ((2, tables[1]), (1, tables[0])) if tuple(newest[-m:]) in table
        ]
        if not known:
            break
        drafted.append(known[0])
    return drafted


@pytest.mark.parametrize("most", [3, 1000])
def test_tables_equal_a_recount(most):
    for seed in range(5):
        found = ngram_statistics.count_ngrams(corpus(seed), V, most)
        for m, contexts, successors in zip(ngram_statistics.ORDERS, found.contexts, found.successors):
            table = most_frequent(corpus(seed), m, most)
            assert contexts.tolist() == [list(context) for context in sorted(table)]
            assert successors.tolist() == [table[context] for context in sorted(table)]


def test_drafts_come_from_the_row_and_otherwise_from_the_corpus():
    """The oracle looks up in the row, and otherwise follows the longest known context of the corpus
    until none is known.
    """
    texts, most = corpus(1), 9
    tables = [most_frequent(texts, m, most) for m in ngram_statistics.ORDERS]
    given = jax.tree.map(jnp.asarray, ngram_statistics.count_ngrams(texts, V, most))
    rng = np.random.default_rng(0)
    tokens, last = (
        rng.integers(0, V, (ROWS, CAPACITY)).astype(np.int32),
        rng.integers(0, CAPACITY, ROWS).astype(np.int32),
    )
    tokens[0, :2], last[:3] = V - 1, 0  # the corpus does not have this token
    drafter = Ngram(DRAFTS, 3, 2)
    state = SimpleNamespace(tokens=tokens, cache=SimpleNamespace(length=last))
    tree = jax.jit(lambda given: drafter.propose(None, given, state, None)[0])(given)
    assert tree.q is None
    lengths = set()
    for b in range(ROWS):
        text = tokens[b, : last[b] + 1].tolist()
        own = look_up(text, DRAFTS, 3, 2)
        wanted = own or continue_text(text, tables, DRAFTS)
        assert tree.valid[b].tolist() == [True] * (1 + len(wanted)) + [False] * (DRAFTS - len(wanted))
        assert tree.tokens[b, 1 : 1 + len(wanted)].tolist() == wanted
        lengths.add((own is None, len(wanted)))
    assert {(False, DRAFTS), (True, 0), (True, DRAFTS)} <= lengths


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Statistics that ``specjax ngrams`` wrote."""
    from support.models import language_model, tiny_model

    import specjax

    root = tmp_path_factory.mktemp("statistics")
    specjax.save(language_model(tiny_model(num_layers=1)), root / "model")
    for name, text in (("a.txt", "the theory\n"), ("b.txt", "that the")):
        (root / name).write_text(text)
    argv = (
        "ngrams",
        "--model",
        root / "model",
        "--data",
        root / "a.txt",
        root / "b.txt",
        "--output",
        root / "text.npz",
    )
    assert main([str(a) for a in argv]) == 0
    return root / "text.npz"


def test_the_command_counts_tokens_of_the_models_tokenizer(file):
    tokenizer = byte_tokenizer()
    found = ngram_statistics.load(file, 61)
    wanted = ngram_statistics.count_ngrams([tokenizer.encode("the theory\n"), tokenizer.encode("that the")], 61, 100)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_statistics_speed_up_and_leave_the_text_greedy(target, tmp_path):
    """Statistics of the greedy texts themselves: the drafter follows them where a text does not
    repeat itself.
    """
    prompts = [[7], *np.random.default_rng(0).integers(1, 61, (7, 9)).tolist()]
    greedy = continue_greedily(target.model, prompts, 24)
    said = [prompt + new for prompt, new in zip(prompts, greedy)]
    ngram_statistics.save(ngram_statistics.count_ngrams(said, 61, 1000), 61, tmp_path / "said.npz")
    generator = Generator(target, "ngram", ngram_statistics=str(tmp_path / "said.npz"), num_speculative_tokens=3)
    results = generator(prompts, max_new_tokens=24, ignore_eos=True)
    assert [result.token_ids for result in results] == greedy
    assert sum(result.stats.accepted for result in results) > 100


def test_unusable_files_are_named_in_one_line(file, target, tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    (tmp_path / "cut.npz").write_bytes(file.read_bytes()[:100])
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, named in (
        ("absent", "cannot be read"),
        *((name, "no n-gram statistics") for name in ("text", "other", "cut", "empty")),
    ):
        with pytest.raises(RequestError, match=named) as error:
            Generator(target, "ngram", ngram_statistics=str(tmp_path / f"{name}.npz"))
        assert "\n" not in str(error.value)
    with pytest.raises(RequestError, match="are of 61 tokens and the target has 60"):
        make_drafter("ngram", ngram_statistics=str(file)).parameters(None, 60)
    with pytest.raises(RequestError, match="no text of two tokens"):
        ngram_statistics.count_ngrams([[], [3]], V, 10)
    with pytest.raises(RequestError, match="cannot be written"):
        ngram_statistics.save(ngram_statistics.count_ngrams(corpus(0), V, 10), V, tmp_path / "no" / "file.npz")


def test_the_command_refuses_unreadable_data(tmp_path, capsys):
    assert main(["ngrams", "--data", str(tmp_path / "absent.txt"), "--output", str(tmp_path / "o.npz")]) == 2
    assert "absent.txt" in capsys.readouterr().err

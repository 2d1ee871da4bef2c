"""Sources of text: files, tables, conversations and datasets; faulty ones get one line with their place."""

import csv
import gzip
import json
import sys
from pathlib import Path

import pytest
from support.chat import CHATML, chat_tokenizer, turns

from specjax import RequestError
from specjax.requests.chat import render_answers
from specjax.training.data import read_streams
from specjax.training.recipe import make_recipe
from specjax.training.sources import Document, Source, make_sources, read_documents

TOKENIZER = chat_tokenizer(CHATML)


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(path, **options) -> list[Document]:
    return read_documents(Source(str(path), **options), TOKENIZER)


def test_texts_of_all_formats_are_read(tmp_path):
    rows = [{"text": "one", "id": "1"}, {"text": "two", "id": "2"}, {"text": " ", "id": "3"}]
    (tmp_path / "a.jsonl").write_text(lines(*rows))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(*rows).encode()))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["text", "id"])
        table.writeheader()
        table.writerows(rows)
    for name in ("a.jsonl", "a.jsonl.gz", "a.json", "a.csv"):
        assert read(tmp_path / name) == [Document("one"), Document("two")]
        assert [document.text for document in read(tmp_path / name, column="id")] == ["1", "2", "3"]
    (tmp_path / "a.txt").write_text('{"text": "one"}')
    assert read(tmp_path / "a.txt") == [Document('{"text": "one"}')]


@pytest.mark.slow
def test_texts_of_parquet_are_read(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [{"messages": turns("a", "b"), "text": None}, {"messages": None, "text": "one"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    asked, text = read(tmp_path / "a.parquet")
    assert asked == Document(*render_answers(TOKENIZER, turns("a", "b"))[0]) and text == Document("one")


def test_a_directory_has_texts_and_tables(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_text(lines({"content": "row"}))
    (tmp_path / "b.json").write_text("[1]")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "c.bin").write_bytes(b"\0\1")
    assert {document.text for document in read(tmp_path)} == {"[1]", "row"}


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": turns("a", "b"), "text": "t"}, turns("a", "b")),
        ({"messages": [{**turn, "tool_calls": None} for turn in turns("a", "b")]}, turns("a", "b")),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, turns("a", "b")),
        ({"conversations": turns("a", "b", "c", "d")}, turns("a", "b", "c", "d")),
        ({"instruction": "a", "input": "", "output": "b", "text": "t"}, turns("a", "b")),
        ({"instruction": "a", "input": "i", "output": "b"}, turns("a\n\ni", "b")),
    ],
)
def test_conversations_are_rendered_by_the_targets_template(row, messages, tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(row))
    assert read(tmp_path / "a.jsonl") == [Document(*found) for found in render_answers(TOKENIZER, messages)]


def test_a_column_may_hold_texts_or_conversations(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines({"x": turns("a", "b"), "text": "t"}, {"x": "c"}))
    asked, text = read(tmp_path / "a.jsonl", column="x")
    assert asked.spans and text == Document("c")


GOOD = lines({"text": "one"})
BAD = {
    "a broken line": ("a.jsonl", GOOD + "{", {}, "a.jsonl, line 2: the line is not JSON"),
    "no known column": ("a.jsonl", GOOD + lines({"body": "x"}), {}, "a.jsonl, line 2: no text; a row needs text, content"),
    "no such column": ("a.jsonl", GOOD, dict(column="body"), "line 1: no column 'body'; the row has 'text'"),
    "an empty column": ("a.jsonl", lines({"body": None}), dict(column="body"), "line 1: column body is empty; leave the row out"),
    "a number": ("a.jsonl", lines({"text": 7}), {}, "line 1: text must be a text or a conversation, not 7"),
    "no object": ("a.jsonl", "[1]\n", {}, "line 1: no object; a row needs text"),
    "no list": ("a.json", "{}", {}, "no list of objects; a row needs text"),
    "a short row": ("a.csv", "text,id\none\n", {}, "a.csv, line 2: 2 columns; a row needs text"),
    "an unknown format": ("a.arrow", "A\0B", {}, "a.arrow: no text there; name text files, or files that end in .jsonl"),
    "blank rows": ("a.jsonl", lines({"text": " "}), {}, "no text there"),
    "a turn without a text": ("a.jsonl", lines({"messages": [{"role": "user"}]}), {}, "line 1: messages[0] needs a string"),
    "no answer": ("a.jsonl", lines({"messages": turns("a")}), {}, "line 1: messages has no assistant turn"),
    "an unknown speaker": ("a.jsonl", lines({"conversations": [{"value": "a"}]}), {}, "messages[0] needs a string as its role"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_fault_is_named_with_its_place(fault, tmp_path):
    name, content, options, named = BAD[fault]
    (tmp_path / name).write_text(content)
    with pytest.raises(RequestError) as error:
        read_streams([Source(str(tmp_path / name), **options)], TOKENIZER, 0)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_weights_are_read_and_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a=1.txt").write_text("a")
    assert Source.parse("a=1.txt") == Source("a=1.txt")
    assert Source.parse("b.txt=0.7", "c") == Source("b.txt", 0.7, "c")
    for text, named in {"a=0": "weight 0.0 of a must be above 0", "a=-1": "must be above 0", "a=nan": "above 0",
                        "a=inf": "above 0", "a=x": "weight 'x' is no number; use PATH=WEIGHT", "=1": "path is empty"}.items():  # fmt: skip
        with pytest.raises(RequestError, match=named):
            Source.parse(text)
    with pytest.raises(RequestError, match="--data b has no weight and others have"):
        make_sources([Source("a", 1.0), "b"])


def test_a_recipe_lists_its_sources():
    table = dict(kind="mtp", data=[dict(path="a", weight=70), dict(path="b", weight=30.0, column="x")])
    assert make_recipe(table, "r").data == (Source("a", 70), Source("b", 30.0, "x"))
    for data, named in {
        ("a",): "[[data]] must be a table, not 'a'",
        (("wait", 1),): "key 'wait' is unknown; did you mean weight",
        (("path", "a"), ("weight", "1")): "weight = '1' is not a number",
        (("path", "a"), ("weight", 0)): "weight 0 of a must be above 0",
        (("weight", 1),): "path is empty; name a file",
    }.items():
        entry = dict(data) if isinstance(data[0], tuple) else data[0]
        with pytest.raises(RequestError) as error:
            make_recipe(dict(kind="mtp", data=[entry]), "r")
        assert named in str(error.value)
    with pytest.raises(RequestError, match=r"\[\[data\]\] must be a list of tables"):
        make_recipe(dict(kind="mtp", data="a.txt"), "r")


def test_streams_have_the_weights_of_their_sources(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 400)
    (tmp_path / "b.jsonl").write_text(lines(*[{"messages": turns("b" * 30, "c" * 30)}] * 10))
    sources = Source(str(tmp_path / "a.txt"), 3), Source(str(tmp_path / "b.jsonl"), 1)
    train, held_out = read_streams(sources, TOKENIZER, 0)
    assert train.shares.tolist() == held_out.shares.tolist() == [0.75, 0.25]
    assert [stream.tokens.size for stream in held_out.streams] == [20, train.streams[1].tokens.size // 19]
    assert train.streams[0].learnt.all() and 0.2 < train.streams[1].learnt.mean() < 0.4
    joined, _ = read_streams([source.path for source in sources], TOKENIZER, 0)
    assert len(joined.streams) == 1 and not joined.streams[0].learnt.all()


def test_datasets_are_read_from_the_hub_and_from_directories(monkeypatch, tmp_path):
    calls = []

    class Datasets:
        @staticmethod
        def load_dataset(*args, **options):
            calls.append((args, options))
            return [{"text": "hub"}]

        @staticmethod
        def load_from_disk(path):
            return {"train": [{"text": "disk"}], "test": [{"text": "other"}]}

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    assert read("hf://datasets/owner/name", split="test", configuration="en") == [Document("hub")]
    assert calls == [(("owner/name", "en"), {"split": "test"})]
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert read(tmp_path) == [Document("disk")] and read(tmp_path, split="test") == [Document("other")]
    with pytest.raises(
        RequestError, match="cannot be read .no split 'none' among train, test.; give its files with --data"
    ):
        read(tmp_path, split="none")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        RequestError, match=r"needs the package datasets; install it with pip install 'specjax\[eval\]'"
    ):
        read("hf://datasets/owner/name")

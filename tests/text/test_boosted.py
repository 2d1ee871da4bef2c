"""A boosted model: its file, and the generator that it makes."""

import pytest

from specjax import Generator, RequestError, load_boosted
from specjax.text.boosted import Boosted, read_boosted


def test_what_was_written_is_read(tmp_path):
    options = {"num_speculative_tokens": 3}
    loading = {"quantize": "stored"}
    Boosted("tiny-python", "draft_model", "drafter", options, loading).write(tmp_path)
    expected = Boosted("tiny-python", "draft_model", str(tmp_path / "drafter"), options, loading)
    assert read_boosted(tmp_path) == expected


def test_the_generator_is_that_of_the_choice(tmp_path):
    Boosted("tiny-python", "ngram", options={"num_speculative_tokens": 2}).write(tmp_path)
    generator = load_boosted(tmp_path, dtype="float32")
    assert (generator.method, generator.drafter.depth) == ("ngram", 2)


@pytest.mark.slow
def test_the_text_of_the_choice_is_that_of_plain_decoding(tmp_path):
    Boosted("tiny-python", "ngram", options={"num_speculative_tokens": 2}).write(tmp_path)
    generator = load_boosted(tmp_path, dtype="float32")
    prompt = "def add(a, b):\n    return a + b\n\ndef add"
    assert generator(prompt, max_new_tokens=12).text == Generator("tiny-python", "none")(prompt, max_new_tokens=12).text


@pytest.mark.parametrize(
    "text, message",
    [
        ('method = "ngram"', "model is missing"),
        ('model = "a"\nmethod = "ngram"\nspeed = 2', "key 'speed' is unknown"),
        ('model = "a"\nmethod = "ngram"\n[loading]\nmesh = "model=2"', "dtype, quantize, revision, not 'mesh'"),
        ('model = "a"\nmethod = 3', "method must be a string"),
        ('model = "a"\nmethod = "ngram"\n[options]\ntree = "2,2"', "belongs to another method"),
        ('model = "a"\nmethod = "nosuch"', "method 'nosuch' is unknown"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "boost.toml").write_text(text)
    with pytest.raises(RequestError, match=message):
        read_boosted(tmp_path)


def test_a_directory_without_a_boost_is_refused(tmp_path):
    with pytest.raises(RequestError, match="specjax boost has finished"):
        read_boosted(tmp_path)

"""``specjax beams``: the beams of the library, and what bad input gets."""

import json

from support.command_line import assert_one_line, models, specjax_main

import specjax


def test_the_beams_are_those_of_the_library(specjax_main, models):
    argv = ("--prompt", "ab", "--prompt", "b", "--num-beams", "2", "--max-new-tokens", "3", "--length-penalty", "0")
    code, out, _ = specjax_main("beams", "--model", models["draft"], *argv, "--json")
    target = specjax.load(models["draft"])
    found = specjax.beam_search(target, ["ab", "b"], num_beams=2, max_new_tokens=3, length_penalty=0.0)
    assert code == 0
    assert [[beam["token_ids"] for beam in row["beams"]] for row in json.loads(out)] == [
        [beam.token_ids for beam in beams] for beams in found
    ]
    shown = specjax_main("beams", "--model", models["draft"], *argv)[1].splitlines()
    assert shown[0] == "'ab'" and shown[1].split()[0] == f"{found[0][0].score:.4f}" and len(shown) == 6


def test_bad_input_gets_one_line(specjax_main):
    for argv, words in (
        (["--prompt", ""], "is empty"),
        (["--prompt", "a", "--num-beams", "0"], "must be a whole number from 1"),
        (["--prompt", "a", "--max-new-tokens", "4000"], "do not fit the context of 2048"),
        (["--prompt", "a", "--length-penalty", "nan"], "length_penalty"),
        (["--prompt", "a", "--stop-token-ids", "4096"], "stop_token_ids holds a token outside the vocabulary of 4096"),
        (["--prompt", "a", "--stop-token-ids", "-1"], "stop_token_ids holds a token outside the vocabulary of 4096"),
        (["--prompt", "a", "--stop-token-ids", "9" * 30], "stop_token_ids holds a token outside"),
    ):
        assert_one_line(specjax_main("beams", *argv), words)

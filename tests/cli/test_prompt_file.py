"""``specjax generate --prompts``: the texts are those of one prompt alone, and an interrupted run goes on."""

import json

import pytest
from support.command_line import assert_one_line, models, specjax_main

import specjax.engine
from specjax import Engine, Generator, load
from specjax.cli import prompt_file

PROMPTS = ["def f(", "x", "while True:", "AB", "class C"]
OPTIONS = ("--max-new-tokens", "8", "--ignore-eos", "--temperature", "0.8", "--seed", "3", "--logprobs", "1")
SIZES = ("--slots", "2", "--capacity", "60")


@pytest.fixture(scope="module")
def engines():
    """Engines by their options, so that the tests compile one."""
    return {}


@pytest.fixture(autouse=True)
def reuse_engines(engines, monkeypatch):
    def engine(target, method, draft, **options):
        key = (target.name, method, *options.items())
        if key not in engines:
            engines[key] = Engine(target, method, draft, **options)
        return engines[key]

    monkeypatch.setattr(specjax.engine, "Engine", engine)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return file


@pytest.fixture
def command(models, prompts, tmp_path):
    pair = ("--model", models["target"], "--draft", models["draft"], "--num-speculative-tokens", "2")
    return ("generate", *pair, "--prompts", prompts, "--output", tmp_path / "out.jsonl", *OPTIONS, *SIZES)


@pytest.fixture(scope="module")
def alone(models):
    """The tokens of each prompt, decoded by plain calls of a Generator with the draft."""
    generator = Generator(load(models["target"]), draft=load(models["draft"]), num_speculative_tokens=2)
    options = dict(max_new_tokens=8, ignore_eos=True, temperature=0.8, seed=3)
    return [generator(prompt, **options).token_ids for prompt in PROMPTS]


def lines_of(file) -> dict[int, dict]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({line["index"] for line in found}) == len(found)
    return {line["index"]: line for line in found}


def test_each_prompt_gets_its_own_text_and_a_second_run_goes_on(command, specjax_main, tmp_path, alone):
    out = tmp_path / "out.jsonl"
    code, text, err = specjax_main(*command)
    assert (code, text) == (0, "") and err.startswith("5 of 5 prompts, 0 by earlier runs; 40 tokens, ")
    first = lines_of(out)
    assert [first[i]["token_ids"] for i in range(5)] == alone
    assert all(len(line["logprobs"]) == 8 for line in first.values())

    kept = out.read_text().splitlines(keepends=True)[:2]
    out.write_text("".join(kept) + '{"index": 4, "ke')  # a process that was killed while it wrote
    assert specjax_main(*command)[2].startswith("3 of 5 prompts, 2 by earlier runs; 24 tokens, ")
    assert out.read_text().startswith("".join(kept))
    assert {i: line["token_ids"] for i, line in lines_of(out).items()} == dict(enumerate(alone))
    assert specjax_main(*command)[2] == "0 of 5 prompts, 5 by earlier runs\n"

    before = out.read_text()
    for other in (("--seed", "4"), ("--rule", "sample_and_walk"), ("--dtype", "bfloat16"), ("--kv-quantize", "int8")):
        assert_one_line(specjax_main(*command, *other), "line 1: is no result of these prompts with this model")
    assert out.read_text() == before
    assert specjax_main(*command, "--num-speculative-tokens", "3")[2] == "0 of 5 prompts, 5 by earlier runs\n"


def test_ctrl_c_leaves_whole_lines(command, specjax_main, tmp_path, monkeypatch, alone):
    step = Engine.step

    def interrupted(engine):
        if (tmp_path / "out.jsonl").read_text():
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    code, out, err = specjax_main(*command)
    assert (code, out) == (130, "") and err == (
        f"specjax: interrupted; the same command continues {tmp_path / 'out.jsonl'}\n"
    )
    assert all(line["token_ids"] == alone[i] for i, line in lines_of(tmp_path / "out.jsonl").items())


def test_a_prompt_that_fails_does_not_stop_the_others(command, specjax_main, prompts, tmp_path, alone):
    long = json.dumps({"prompt": "y" * 125})
    prompts.write_text("\n".join([*prompts.read_text().splitlines()[:2], long]))
    code, out, err = specjax_main(*command)
    error = err.splitlines()[-1]
    assert (code, out) == (2, "") and error.startswith(
        f"specjax: error: {prompts}, prompt 3: the prompt has 125 tokens"
    )
    assert [lines_of(tmp_path / "out.jsonl")[i]["token_ids"] for i in range(2)] == alone[:2]


BAD = {
    "--prompt": ("--prompt", "x"),
    "--stream": ("--stream",),
    "--json": ("--json",),
    "--n": ("--n", "2"),
    "--feedback-log": ("--feedback-log-mb", "1"),
}


@pytest.mark.parametrize("flag", BAD)
def test_options_for_the_terminal_are_refused(flag, command, specjax_main):
    assert_one_line(specjax_main(*command, *BAD[flag]), f"{flag} does not go with --prompts")


def test_other_bad_input(command, specjax_main, models, prompts, tmp_path):
    alone = ("generate", "--model", models["target"])
    assert_one_line(specjax_main(*alone), "no prompt is given; name one with --prompt, or a file")
    assert_one_line(specjax_main(*alone, "--prompts", prompts), "name it with --output")
    assert_one_line(specjax_main(*alone, "--prompt", "x", "--output", tmp_path / "o"), "--output is for --prompts")
    assert_one_line(specjax_main(*alone, "--prompt", "x", "--slots", "2"), "--slots is for --prompts")
    assert_one_line(specjax_main(*command, "--output", tmp_path / "no" / "o"), "cannot be written")
    assert_one_line(specjax_main(*command, "--prompts", tmp_path / "absent"), "cannot be read")
    assert_one_line(specjax_main(*command, "--slots", "0"), "--slots")


def test_the_engine_holds_few_requests_at_a_time():
    """A file may have more prompts than the memory has room for as requests."""

    class Counting:
        has_work, held, most = True, 0, 0

        def submit(self, prompt):
            self.held += 1
            self.most = max(self.most, self.held)
            return self

        def step(self):
            self.is_over = True

        is_over = False

        def result(self):
            self.held -= 1
            return "done"

    engine = Counting()
    found = list(prompt_file._decode(engine, {i: {"prompt": "x"} for i in range(50)}, {}, 4))
    assert sorted(i for i, _ in found) == list(range(50)) and engine.most == 4

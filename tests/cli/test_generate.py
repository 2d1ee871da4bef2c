"""``specjax generate``: what it prints, and that options reach the generator."""

import io
import json
import shutil
import sys

import pytest
from support.command_line import GENERATE, OPTIONS, PLAIN, SHORT, assert_one_line, kept, models, reuse, specjax_main
from support.models import TINY, byte_tokenizer

pytestmark = pytest.mark.usefixtures("reuse")


def test_generate_json_is_one_object(specjax_main, models):
    code, out, err = specjax_main("generate", "--model", models["target"], "--prompt", "def f(", *PLAIN, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["text", "token_ids", "prompt_token_ids", "finish_reason", "stats", "from_draft", "sample"]
    assert len(found["token_ids"]) == 10
    assert found["finish_reason"] == "length"
    assert found["prompt_token_ids"] == byte_tokenizer().encode("def f(")
    wanted = "target_calls drafted accepted mean_acceptance_length draft_acceptance_rate acceptance_rate_per_position"
    assert {*wanted.split(), "prefill_seconds", "decode_seconds", "compile_seconds", "tokens_per_second"} <= found[
        "stats"
    ].keys()


@pytest.fixture(scope="module")
def speculative(models):
    return (
        "generate",
        "--model",
        models["target"],
        "--draft",
        models["draft"],
        "--prompt",
        "def f(",
        *GENERATE,
        *SHORT,
    )


def test_a_draft_alone_chooses_draft_model_and_keeps_the_output(specjax_main, models, speculative):
    _, plain, _ = specjax_main("generate", "--model", models["target"], "--prompt", "def f(", *PLAIN, "--json")
    code, out, err = specjax_main(*speculative, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["token_ids"] == json.loads(plain)["token_ids"]
    assert json.loads(out)["stats"]["drafted"] > 0


def test_generate_prints_the_text_and_the_figures_apart(specjax_main, speculative):
    _, out, _ = specjax_main(*speculative, "--json")
    code, text, err = specjax_main(*speculative)
    assert code == 0
    assert text == json.loads(out)["text"] + "\n"
    for name in (
        "Mean acceptance length",
        "Accepted",
        "Drafted",
        "Per-position acceptance rate",
        "Avg Draft acceptance rate",
        "tokens/s",
    ):
        assert name in err


def test_stream_prints_the_same(specjax_main, speculative):
    _, whole, _ = specjax_main(*speculative)
    code, streamed, err = specjax_main(*speculative, "--stream")
    assert (code, streamed) == (0, whole)
    assert "Mean acceptance length" in err
    _, as_json, pieces = specjax_main(*speculative, "--stream", "--json")
    assert pieces == whole
    assert json.loads(as_json)["text"] + "\n" == whole


def test_several_prompts_and_stdin_are_one_batch(specjax_main, models, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def f(\n")))
    argv = ("generate", "--model", models["target"], *PLAIN, "--json", "--prompt")
    _, one, _ = specjax_main(*argv, "def f(")
    code, out, _ = specjax_main(*argv, "-", "--prompt", "x")
    first, second = json.loads(out)
    assert code == 0
    assert first["token_ids"] == json.loads(one)["token_ids"]
    assert second["prompt_token_ids"] == byte_tokenizer().encode("x")


SOME_OPTIONS = (
    "--temperature", "0.8", "--top-k", "40", "--min-p", "0.01", "--repetition-penalty", "1.2", "--presence-penalty", "0.1",
    "--frequency-penalty", "0.1", "--min-new-tokens", "2", "--logit-bias", '{"5": 1.5}', "--suppress-token", "7", "--suppress-token", "8",
    "--stop-token-id", "9", "--regex", "[!-Z]+", "--logprobs", "2", "--policy-logprobs", "--seed", "3",
)  # fmt: skip


def test_options_reach_the_generator(specjax_main, models, kept):
    none = ("--capacity", "300", "--method", "none")
    argv = ("generate", "--model", models["target"], "--prompt", "def f(", *OPTIONS, *none)
    code, out, err = specjax_main(*argv, *SOME_OPTIONS, "--stop", "!", "--stop", "#", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    options = dict(
        temperature=0.8, top_k=40, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1, min_new_tokens=2,
        logit_bias={5: 1.5}, suppressed_tokens=[7, 8], stop_token_ids=[9], regex="[!-Z]+", logprobs=2, policy_logprobs=True, seed=3,
        stop=["!", "#"],
    )  # fmt: skip
    generator = kept["latest"]
    wanted = generator("def f(", max_new_tokens=10, **options)
    assert (generator.method, generator.session.capacity) == ("none", 300)
    assert (found["token_ids"], found["text"]) == (wanted.token_ids, wanted.text)
    assert found["logprobs"] == pytest.approx(wanted.logprobs) and [len(top) for top in found["top_logprobs"]] == [
        2
    ] * len(wanted.token_ids)
    assert found["policy_logprobs"] == pytest.approx(wanted.policy_logprobs)
    plain = specjax_main(*argv, "--json")[1]
    assert json.loads(plain)["token_ids"] != found["token_ids"]


def test_nan_logits_stop_with_one_line(specjax_main, models):
    code, out, err = specjax_main("generate", "--model", models["nan"], "--prompt", "def f(", *PLAIN)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "NaN" in err


def test_the_context_ends_a_row_with_length(specjax_main, models):
    prompt = "x" * (TINY.context - 3)
    code, out, _ = specjax_main("generate", "--model", models["target"], "--prompt", prompt, *PLAIN, "--json")
    assert code == 0
    assert (len(json.loads(out)["token_ids"]), json.loads(out)["finish_reason"]) == (3, "length")


def test_chat_writes_the_prompt_in_the_template(specjax_main, models):
    argv = ("generate", "--chat", "--prompt", "ab", *PLAIN)
    code, out, err = specjax_main(*argv, "--model", models["chat"], "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["prompt_token_ids"] == byte_tokenizer().encode("[ab]")
    streamed = json.loads(specjax_main(*argv, "--model", models["chat"], "--json", "--stream")[1])
    assert streamed["token_ids"] == json.loads(out)["token_ids"]
    assert_one_line(specjax_main(*argv, "--model", models["target"]), "no chat template")


def test_a_given_chat_template_stands_in_for_the_models_own(specjax_main, models, tmp_path):
    template = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
    (file := tmp_path / "template.jinja").write_text(template)
    argv = ("generate", "--prompt", "ab", *PLAIN, "--json", "--chat-template")
    for model, given in (("target", file), ("chat", file), ("chat", template)):  # "chat" has a template of its own
        code, out, err = specjax_main(*argv, given, "--chat", "--model", models[model])
        assert (code, err) == (0, "")
        assert json.loads(out)["prompt_token_ids"] == byte_tokenizer().encode("<ab>")
    assert_one_line(specjax_main(*argv, file, "--model", models["target"]), "--chat-template is for conversations")
    assert_one_line(
        specjax_main(*argv, tmp_path / "absent", "--chat", "--model", models["target"]), "absent: cannot be read"
    )


def test_a_conversation_has_the_options_that_the_checkpoint_recommends(specjax_main, models, tmp_path):
    directory = shutil.copytree(models["chat"], tmp_path / "chat")
    (directory / "generation_config.json").write_text(json.dumps(dict(temperature=1.0, top_k=7, do_sample=True)))
    ask = lambda *more: specjax_main("generate", "--prompt", "ab", *PLAIN, "--model", directory, "--json", *more)
    recommended, given = ask("--chat"), ask("--chat", "--generation-config", "none", "--temperature", 1, "--top-k", 7)
    assert recommended[2] == (
        "specjax: generation_config.json sets temperature 1.0, top_k 7; --generation-config none leaves them out\n"
    )
    assert given[2] == "" and json.loads(recommended[1])["token_ids"] == json.loads(given[1])["token_ids"]
    greedy = [
        json.loads(ask("--chat", *more)[1])["token_ids"]
        for more in (("--temperature", 0), ("--generation-config", "none"))
    ]
    assert greedy[0] == greedy[1] != json.loads(given[1])["token_ids"]
    assert ask()[2] == ""


def test_samples_of_a_prompt_differ_and_the_first_is_that_of_one(specjax_main, models):
    argv = ("generate", "--model", models["target"], "--prompt", "def f(", *PLAIN, "--temperature", "1", "--json")
    one = json.loads(specjax_main(*argv)[1])
    several = json.loads(specjax_main(*argv, "-n", "3")[1])
    assert several[0]["token_ids"] == one["token_ids"]
    assert len({tuple(found["token_ids"]) for found in several}) == 3
    assert_one_line(specjax_main(*argv, "--n", "0"), "argument -n/--n: must be a whole number from 1")
    assert_one_line(specjax_main(*argv, "--n", "2", "--stream"), "--stream takes one prompt and one sample")
    assert_one_line(specjax_main(*argv, "--offload"), "a CPU has no other memory to copy them to; leave it out")


@pytest.mark.slow
def test_a_feedback_log_is_written_only_if_asked_for(specjax_main, models, tmp_path):
    argv = (
        "generate",
        "--model",
        models["target"],
        "--draft",
        models["draft"],
        "--prompt",
        "def f(",
        *GENERATE,
        *SHORT,
    )
    code, out, err = specjax_main(*argv, "--json", "--feedback-log", tmp_path / "log")
    assert (code, err) == (0, "")
    (file,) = (tmp_path / "log").iterdir()
    assert out.count(str(tmp_path)) == 0 and file.stat().st_size < 10_000
    assert json.loads(specjax_main(*argv, "--json")[1])["token_ids"] == json.loads(out)["token_ids"]
    assert len(list((tmp_path / "log").iterdir())) == 1
    ngram = ("generate", "--model", models["target"], "--prompt", "x", "--method", "ngram")
    assert_one_line(specjax_main(*ngram, "--feedback-log", tmp_path / "log"), "needs chains that a draft model draws")
    assert_one_line(specjax_main(*argv, "--feedback-log-mb", 3), "bounds a log and none is written")


@pytest.mark.slow
def test_forms_of_weights_and_a_draft_vocabulary_reach_the_models(specjax_main, models):
    """Drafting leaves the text of the quantised target as it is."""
    target = ("generate", "--model", models["target"], "--prompt", "ab", *GENERATE, "--json")
    forms = ("--quantize", "int8", "--kv-quantize", "int8")
    draft = ("--draft", models["draft"], "--draft-quantize", "int8", "--draft-vocab", "30", *SHORT)
    texts = []
    for argv in (
        (*target, *forms),
        (*target, *forms, *draft),
        (*target, *forms, "--method", "quantized_self", "--draft-scheme", "int8"),
    ):
        code, out, err = specjax_main(*argv)
        assert code == 0, err
        texts.append(json.loads(out)["token_ids"])
    assert texts[0] == texts[1] == texts[2]

"""Programs that people point at a server of the OpenAI protocol, against ``specjax serve`` in a process.

The target is the embedded one. It was never trained to call tools, so calls are demanded, which a grammar enforces.
"""

import asyncio
import json
from pathlib import Path
from typing import Literal

import httpx
import openai
import pytest
from pydantic import BaseModel
from support.serving import serving

import specjax

pytestmark = pytest.mark.slow

FOLDER = Path(specjax.__file__).parent / "checkpoints/zoo/tiny-python"
TEMPLATE = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% if tools %}Call with <tool_call>.
{% endif %}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% for call in m['tool_calls'] or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}"""
ASKED = [{"role": "user", "content": "How is the weather in Bonn?"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Bonn", "Ulm"]
    days: Literal[1, 2]


@pytest.fixture(scope="module")
def url():
    flags = ("--model", "tiny-python", "--draft", "tiny-python-draft", "--method", "draft_model", "--dtype", "float32")
    with serving(*flags, "--slots", "4", "--widths", "--chat-template", TEMPLATE) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_parses_structured_outputs_and_tools(client):
    own = dict(model="tiny-python", messages=ASKED, temperature=0, max_tokens=100)
    found = client.chat.completions.parse(response_format=Weather, **own).choices[0].message.parsed
    assert isinstance(found, Weather)
    tool, one = openai.pydantic_function_tool(Weather), dict(tool_choice="required", parallel_tool_calls=False)
    message = client.chat.completions.parse(tools=[tool], **one, **own).choices[0].message
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Weather)
    with client.chat.completions.stream(tools=[tool], **one, **own) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds and last.finish_reason == "tool_calls"
    assert last.message.tool_calls[0].function.arguments == message.tool_calls[0].function.arguments


def test_langchain_calls_a_tool_and_reads_its_result(url):
    chat_models = pytest.importorskip("langchain_openai")
    model = chat_models.ChatOpenAI(
        model="tiny-python", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=60
    )
    message = model.bind_tools([Weather], tool_choice="Weather").invoke("How is the weather?")
    (call,) = message.tool_calls
    assert call["name"] == "Weather" and Weather(**call["args"])
    pieces = list(model.bind_tools([Weather], tool_choice="required").stream("How is the weather?"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert [one["name"] for one in whole.tool_calls] and Weather(**whole.tool_calls[0]["args"])
    history = [
        ("user", "How is the weather?"),
        message,
        {"role": "tool", "tool_call_id": call["id"], "content": "rain"},
    ]
    assert isinstance(model.invoke(history).content, str)
    assert isinstance(model.with_structured_output(Weather).invoke("How is the weather?"), Weather)


def test_instructor_fills_a_model(client):
    instructor = pytest.importorskip("instructor")
    ask = instructor.from_openai(client).chat.completions.create
    assert isinstance(ask(model="tiny-python", messages=ASKED, response_model=Weather, max_tokens=60), Weather)


def test_an_agent_calls_its_tool(url):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    seen = []

    @agents.function_tool
    def weather(city: Literal["Bonn", "Ulm"]) -> str:
        """The weather of a city."""
        seen.append(city)
        return "rain"

    async def run() -> agents.RunResult:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            model = agents.OpenAIChatCompletionsModel(model="tiny-python", openai_client=client)
            demands = agents.ModelSettings(tool_choice="required", max_tokens=50, parallel_tool_calls=False)
            agent = agents.Agent("guide", instructions="Be kind.", model=model, tools=[weather], model_settings=demands)
            return await agents.Runner.run(agent, "How is the weather in Bonn?", max_turns=3)

    result = asyncio.run(run())
    assert seen and set(seen) <= {"Bonn", "Ulm"} and isinstance(result.final_output, str)


def test_lm_eval_scores_as_with_its_own_backend(url, monkeypatch):
    """Each item's log-likelihood within 1e-3 of that under transformers, and the same greedy texts."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("accelerate")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    # The client keeps a token of its length for the generated one, and another for the window of a rolling score.
    served = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions", model="tiny-python", tokenizer=str(FOLDER), max_length=258, batch_size=4,
        tokenizer_backend="huggingface",
    )  # fmt: skip
    own = HFLM(pretrained=str(FOLDER), dtype="float32", device="cpu", max_length=256, batch_size=1)
    items = lambda kind, *arguments: [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]
    pairs = [
        (context, end)
        for context in ("def mean(values):\n    return", "import", "x = 1\n" * 90 + "y =", "# Größe 🙂\n")
        for end in (" sum(values) / len(values)", " os", " 'é🙂'")
    ]
    options = items("loglikelihood", *pairs)
    for found, expected in zip(served.loglikelihood(options), own.loglikelihood(options), strict=True):
        assert found[0] == pytest.approx(expected[0], abs=1e-3) and found[1] == expected[1]
    texts = items("loglikelihood_rolling", *[(text,) for text in ("import os\n", "def f(x):\n    return x\n" * 60)])
    rolled = [model.loglikelihood_rolling(texts) for model in (served, own)]
    assert rolled[0] == pytest.approx(rolled[1], abs=1e-3)
    settings = {"until": ["\n\n"], "max_gen_toks": 16, "do_sample": False}
    asked = items("generate_until", *[(text, dict(settings)) for text in ("def mean(values):", "import os\n")])
    again = items("generate_until", *[(text, dict(settings)) for text in ("def mean(values):", "import os\n")])
    assert served.generate_until(asked) == own.generate_until(again)


def test_the_requests_of_vllms_benchmark(url):
    """The fields of ``vllm bench serve``, for both endpoints."""
    same = dict(
        model="tiny-python", repetition_penalty=1.0, temperature=0.0, logprobs=None, stream=True, ignore_eos=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    turns = [{"role": "user", "content": [{"type": "text", "text": "import"}]}]
    asked = {
        "/v1/completions": dict(prompt="import", max_tokens=20),
        "/v1/chat/completions": dict(messages=turns, max_completion_tokens=20),
    }
    assert httpx.get(f"{url}/health").status_code == 200
    for path, fields in asked.items():
        with httpx.stream("POST", url + path, json=same | fields, timeout=60) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert lines.pop() == "[DONE]"
        assert json.loads(lines[-1])["usage"]["completion_tokens"] == 20

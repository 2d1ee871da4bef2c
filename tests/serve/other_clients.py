"""Clients that want other versions of shared packages than the tests have.

``test_clients`` runs this file in an environment of its own, against the server at ``SPECJAX_URL``.
"""

import asyncio
import os
from pathlib import Path
from typing import Literal

import agents
import instructor
import openai
import pytest
from langchain_openai import ChatOpenAI
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from pydantic import BaseModel

import specjax

FOLDER = Path(specjax.__file__).parent / "checkpoints/zoo/tiny-python"
ASKED = [{"role": "user", "content": "How is the weather in Bonn?"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Bonn", "Ulm"]
    days: Literal[1, 2]


@pytest.fixture
def url():
    return os.environ["SPECJAX_URL"]


def test_langchain_calls_a_tool_and_reads_its_result(url):
    model = ChatOpenAI(model="tiny-python", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=60)
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


def test_instructor_fills_a_model(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    ask = instructor.from_openai(client).chat.completions.create
    assert isinstance(ask(model="tiny-python", messages=ASKED, response_model=Weather, max_tokens=60), Weather)


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (agents.OpenAIChatCompletionsModel, "run_llm_again"),
        (agents.OpenAIResponsesModel, "stop_on_first_tool"),  # it takes no text that its bound cuts off
    ],
)
def test_an_agent_calls_its_tool(url, kind, after):
    agents.set_tracing_disabled(True)
    seen = []

    @agents.function_tool
    def weather(city: Literal["Bonn", "Ulm"]) -> str:
        """The weather of a city."""
        seen.append(city)
        return "rain"

    async def run() -> agents.RunResult:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            model = kind(model="tiny-python", openai_client=client)
            demands = agents.ModelSettings(tool_choice="required", max_tokens=50, parallel_tool_calls=False)
            own = dict(tools=[weather], model_settings=demands, tool_use_behavior=after)
            agent = agents.Agent("guide", instructions="Be kind.", model=model, **own)
            return await agents.Runner.run(agent, "How is the weather in Bonn?", max_turns=3)

    result = asyncio.run(run())
    assert seen and set(seen) <= {"Bonn", "Ulm"} and isinstance(result.final_output, str)


def test_lm_eval_scores_as_with_its_own_backend(url, monkeypatch):
    """Each item's log-likelihood within 1e-3 of that under transformers, and the same greedy texts."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
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
    longer = "def f(x):\n    return x\n" * 60  # than the context
    texts = items("loglikelihood_rolling", *[(text,) for text in ("import os\n", longer)])
    rolled = [model.loglikelihood_rolling(texts) for model in (served, own)]
    assert len(own.tok_encode(longer)) > 2 * own.max_length
    assert rolled[0] == pytest.approx(rolled[1], abs=1e-3)  # of the whole text, so of each token
    settings = {"until": ["\n\n"], "max_gen_toks": 16, "do_sample": False}
    asked = items("generate_until", *[(text, dict(settings)) for text in ("def mean(values):", "import os\n")])
    again = items("generate_until", *[(text, dict(settings)) for text in ("def mean(values):", "import os\n")])
    assert served.generate_until(asked) == own.generate_until(again)

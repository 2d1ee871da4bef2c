"""Programs that people point at a server of the OpenAI protocol, against ``specjax serve`` in a process.

The target is the embedded one. It was never trained to call tools, so calls are demanded, which a grammar enforces.
"""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Literal

import httpx
import openai
import pytest
from pydantic import BaseModel
from support.serving import serving

pytestmark = pytest.mark.slow

OTHERS = ("langchain-openai>=1", "instructor>=1.7", "openai-agents>=0.10", "lm-eval[api]>=0.4.9", "accelerate>=1")
"""Clients that want other versions of some packages than those of the tests."""

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


def test_openais_responses(client):
    tool = {"type": "function", "name": "Weather", "parameters": Weather.model_json_schema()}
    own = dict(model="tiny-python", temperature=0, max_output_tokens=100)
    found = client.responses.parse(input="How is the weather?", text_format=Weather, **own)
    assert isinstance(found.output_parsed, Weather) and found.usage.output_tokens < 100
    demands = dict(tools=[tool], tool_choice="required", parallel_tool_calls=False)
    with client.responses.stream(input="How is the weather?", **demands, **own) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in kinds and Weather(**json.loads(call.arguments))
    history = [*ASKED, call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert client.responses.create(input=history, instructions="Be kind.", tools=[tool], **own).output_text


def test_anthropics_messages(url):
    import anthropic  # takes seconds

    tool = {"name": "Weather", "input_schema": Weather.model_json_schema()}
    own = dict(model="tiny-python", messages=ASKED, tools=[tool], extra_body=dict(temperature=0), max_tokens=100)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        demands = dict(tool_choice={"type": "tool", "name": "Weather"})
        with client.messages.stream(**own, **demands) as stream:
            kinds = {event.type for event in stream}
            message = stream.get_final_message()
        (block,) = message.content
        assert "input_json" in kinds and message.stop_reason == "tool_use" and Weather(**block.input)
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
        own["messages"] = [
            *ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}
        ]  # fmt: skip
        assert client.messages.create(system="Be kind.", **own).content[0].text
        assert client.messages.count_tokens(model="tiny-python", messages=ASKED).input_tokens > 5
        with pytest.raises(anthropic.BadRequestError, match="n is not supported"):
            client.messages.create(**own | dict(extra_body=dict(n=2)))


def test_other_clients(url, tmp_path):
    """LangChain, instructor, OpenAI's agents and lm-eval, in an environment that falls back on that of the tests."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    find = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    folder = Path(subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip())
    (folder / "tests.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run([python, "-m", "pip", "install", "--quiet", *OTHERS], check=True, timeout=900)
    file = Path(__file__).with_name("other_clients.py")
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    env = os.environ | {"SPECJAX_URL": url, "PYTHONPATH": str(file.parents[2])}
    found = subprocess.run(run, env=env, capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, found.stdout[-4000:]
    assert "5 passed" in found.stdout


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

"""Several processes on one machine: the tokens of one process, one line when a process dies, and bad arguments."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import jax
import pytest
from support.models import language_model, tiny_model

from specjax import Generator, RequestError, load, parallel, save

DEVICES = 4
"""The devices of all processes together."""

LATEST = 60
"""The seconds after the death of a process in which the others must have ended."""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A directory with the checkpoints of a target and a draft."""
    path = tmp_path_factory.mktemp("hosts")
    save(language_model(tiny_model(0)), path / "target")
    save(language_model(tiny_model(1, num_layers=1)), path / "draft")
    return path


def launch(command: list[str], processes: int, devices: int = DEVICES) -> list[subprocess.Popen]:
    """The processes of one command, which share simulated devices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices // processes}")
    environment = os.environ | dict(XLA_FLAGS=flags, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES=str(processes))
    return [
        subprocess.Popen(
            command,
            env=environment | {"JAX_PROCESS_ID": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]


def specjax(*arguments) -> list[str]:
    return [sys.executable, "-m", "specjax", *map(str, arguments)]


def generate(models: Path, *arguments) -> list[str]:
    files = "--model", models / "target", "--draft", models / "draft", "--method", "draft_model"
    prompts = [part for text in ("abcab", "ba", "cdcdcdc", "aa") for part in ("--prompt", text)]
    return specjax("generate", *files, *prompts, "--temperature", 0.8, "--json", *arguments)


def finish(process: subprocess.Popen, seconds: float = 300) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.slow
def test_several_processes_give_the_tokens_of_one(models):
    processes, mesh = 2, "data=2,model=2"
    alone = finish(launch(generate(models, "--max-new-tokens", 12), 1)[0])
    assert alone[0] == 0, alone[2]
    texts = lambda out: [record["token_ids"] for record in json.loads(out)]
    results = [
        finish(process) for process in launch(generate(models, "--max-new-tokens", 12, "--mesh", mesh), processes)
    ]
    assert [code for code, *_ in results] == [0] * processes, results
    assert texts(results[0][1]) == texts(alone[1])
    assert [out for _, out, _ in results[1:]] == [""] * (processes - 1)


@pytest.mark.slow
def test_the_death_of_a_process_ends_the_others_with_one_line(models):
    """Two commands at the same time: process 0 of the first dies, and process 1 of the second."""
    endless = specjax(
        "verify", "--model", models / "target", "--method", "ngram", "--samples", 10**7, "--mesh", "model=4"
    )
    commands = [launch(endless, 2), launch(endless, 2)]
    time.sleep(40)  # all have joined
    assert [process.poll() for processes in commands for process in processes] == [None] * 4
    for victim, processes in enumerate(commands):
        processes[victim].send_signal(signal.SIGKILL)
    began = time.monotonic()
    for victim, processes in enumerate(commands):
        code, _, errors = finish(processes[1 - victim], LATEST)
        assert code != 0 and time.monotonic() - began < LATEST
        assert errors.startswith("specjax: error:") and errors.count("\n") == 1 and "start the command again" in errors
        processes[victim].kill()


@pytest.mark.slow
def test_a_process_that_does_not_join_is_reported_in_time():
    code = "import specjax.parallel as p; p.start('127.0.0.1:{}', 2, 0, timeout=5)"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended, _, errors = finish(launch([sys.executable, "-c", code.format(port)], 1)[0], LATEST)
    assert ended == 1
    assert errors.splitlines()[-1].startswith(
        f"specjax: error: not all of the 2 processes joined at 127.0.0.1:{port} within 5 s"
    )


@pytest.mark.slow
def test_a_server_on_two_processes_gives_the_texts_of_one(models):
    """Process 0 answers HTTP. Its deterministic texts must be those of a Generator, though clients go away meanwhile."""
    command = specjax("serve", "--model", models / "target", "--method", "ngram", "--mesh", "model=2", "--name", "tiny")
    command += ["--slots", "2", "--capacity", "256", "--chunk", "16", "--port", "0", "--logprobs", "0"]
    generator = Generator(load(models / "target"), "ngram", capacity=256)
    bodies = [
        dict(prompt=[9 + i] * (3 + 9 * i), max_new_tokens=20 + i, temperature=0.8 * (i % 2), seed=i, ignore_eos=True)
        for i in range(4)
    ]
    bodies[3] = dict(prompt=[9] * 20, max_new_tokens=23, seed=3, temperature=0.5, regex="[!-Z]+")
    expected = [generator(body["prompt"], **{k: v for k, v in body.items() if k != "prompt"}).text for body in bodies]
    first, second = launch(command, 2, devices=2)
    try:
        line = first.stderr.readline()
        assert line.startswith("specjax: tiny is ready at "), line
        url = line.split()[-1]
        ask = lambda body: httpx.post(f"{url}/completions", json=dict(body, model="tiny"), timeout=100).json()
        with ThreadPoolExecutor(4) as clients:
            found = clients.map(ask, bodies)
            gone = dict(model="tiny", prompt=[7], max_tokens=200, ignore_eos=True, n=4, stream=True)
            with httpx.stream("POST", f"{url}/completions", json=gone, timeout=100) as stream:
                next(stream.iter_lines())
            assert [answer["choices"][0]["text"] for answer in found] == expected
        time.sleep(3)  # an idle engine goes on
        assert ask(bodies[0])["choices"][0]["text"] == expected[0]
        second.send_signal(signal.SIGTERM)  # a launcher may send it to all
        first.send_signal(signal.SIGTERM)
        assert [finish(process)[0] for process in (first, second)] == [0, 0]
    finally:
        first.kill()
        second.kill()


SHARDS = """
import json, sys
import specjax, specjax.parallel as parallel
from specjax.checkpoints import tensors

parallel.start()
read, opened = [], tensors.open_tensors

class Slice:
    def __init__(self, tensor):
        self.get_shape, self.get_dtype, self.tensor = tensor.get_shape, tensor.get_dtype, tensor
    def __getitem__(self, index):
        part = self.tensor[index]
        read.append(part.size)
        return part

tensors.open_tensors = lambda *args: {name: Slice(tensor) for name, tensor in opened(*args).items()}
model = tensors.load_model(sys.argv[1], tensors.Placement(specjax.make_mesh(model=4)))
print(json.dumps([sum(read), all(x.is_fully_addressable for x in [model.layers[0].mixer.qkv[...]])]))
"""


@pytest.mark.slow
def test_each_process_reads_its_shards_only(models):
    """Three quarters of the model are split over four devices. Each of two processes reads half of these."""
    whole = sum(leaf.size for leaf in jax.tree.leaves(tiny_model(0)))
    results = [finish(process) for process in launch([sys.executable, "-c", SHARDS, str(models / "target")], 2)]
    assert [code for code, *_ in results] == [0, 0], results
    for _, out, _ in results:
        read, addressable = json.loads(out.splitlines()[-1])
        assert read < 0.75 * whole and not addressable


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("10.0.0.1", 2, 0), "has no port; give HOST:PORT"),
        (("10.0.0.1:1", 2, 2), "numbers go from 0 to 2 - 1"),
        (("10.0.0.1:1", 0, 0), "must be at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, named):
    with pytest.raises(RequestError, match=named):
        parallel.start(*arguments)


def test_the_environment_is_checked(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(RequestError, match="JAX_NUM_PROCESSES is 'two'; it must be a whole number"):
        parallel.start()


def test_the_store_of_processes_keeps_texts():
    """JAX has no public name for it, so each version of JAX must show that it is as specjax uses it."""
    code = """
from specjax.parallel import start
from specjax.parallel.private_jax import store_of_processes
import jax
assert store_of_processes() is None
assert not start()  # one process has no others
store = store_of_processes()
for text in ("old", "new"):
    store.key_value_set("specjax/a", text, allow_overwrite=True)
assert dict(store.key_value_dir_get("specjax/")) == {"specjax/a": "new"}
jax.distributed.shutdown()
assert store_of_processes() is None
"""
    (process,) = launch([sys.executable, "-c", code], 1)
    assert finish(process)[::2] == (0, "")


def test_joining_after_jax_has_run_is_refused():
    jax.devices()
    with pytest.raises(RequestError, match="call specjax.parallel.start\\(\\) first"):
        parallel.start("127.0.0.1:1234", 1, 0)
    assert not parallel.several_hosts() and parallel.is_first_host()

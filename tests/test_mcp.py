"""`casebook mcp`, asked by the client of the protocol's own package, as an agent asks it."""

import json
import os
import sys
from pathlib import Path

import anyio
import psutil
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.mcpserver.exceptions import ToolError

from helpers.agent import child
from helpers.agent.server import Tools, server
from helpers.ground.places import OUTPUTS

ROOT = Path(__file__).resolve().parents[1]
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which "
    "1.10 GiB is free. Including non-PyTorch memory, this process has 14.60 GiB memory in use. Of the allocated memory 13.90 GiB "
    "is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated."
)
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def ask(root, *calls):
    """What the tools answer to calls (name, arguments), in one session whose server may read below ``root``."""

    async def session():
        command = [str(ROOT / "helpers" / "__main__.py"), "mcp", "--root", str(root)]
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        server = StdioServerParameters(command=sys.executable, args=command, env=environment)
        async with Client(server) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            return names, [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(session)


def refusal(result):
    assert result.is_error
    return result.content[0].text


def test_every_tool_is_listed_with_typed_inputs_and_what_it_answers(tmp_path):
    async def tools():
        async with Client(server([tmp_path])) as client:
            return (await client.list_tools()).tools

    listed = anyio.run(tools)
    assert [
        tool.name for tool in listed
    ] == "capture diagnose ttm replay whatif leaks fits rehearse fix".split()
    for tool in listed:
        assert tool.description
        for name, schema in tool.input_schema["properties"].items():
            assert schema["type"] in ("string", "integer", "array"), f"{tool.name} {name}"
            if "bytes" in name or "seconds" in name:
                assert schema["type"] == "integer"


def test_a_client_walks_the_tools_that_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    trace = tmp_path / "trace.parquet"
    trace.write_bytes((ROOT / "env/traces/growing-loop.parquet").read_bytes())
    asked = (
        ("diagnose", {"text": MESSAGE}),
        ("diagnose", {"box": "cuda-24gb-tuning"}),
        ("ttm", {"box": "strix-halo-1-found"}),
        ("replay", {"trace": str(trace)}),
        ("whatif", {"trace": str(trace), "capacity_bytes": 20 << 30}),
        ("leaks", {"trace": "trace.parquet"}),
        ("fits", {"model": "config.json", "capacity_bytes": 8 << 30}),
    )
    _, answers = ask(tmp_path, *asked)
    for (name, _), result in zip(asked, answers, strict=True):
        assert not result.is_error, f"{name}: {result.content}"
        assert result.structured_content, name
    message, box, *_ = [result.structured_content for result in answers]
    assert message["confidence"] in ("confirmed", "likely", "weak", "cannot tell")
    assert "15.77 GiB" in message["title"]
    assert all(evidence["id"] for evidence in message["evidence"] + box["evidence"])


def test_a_path_outside_of_the_folders_is_refused(tmp_path):
    inside = tmp_path / "project"
    inside.mkdir()
    (inside / "link.pickle").symlink_to("/etc/passwd")
    _, answers = ask(
        inside,
        ("diagnose", {"box": "/etc/passwd"}),
        ("leaks", {"trace": "../other.pickle"}),
        ("replay", {"trace": "link.pickle"}),
        ("rehearse", {"command": ["python", "x.py"], "folder": ".."}),
        ("fix", {"command": ["python", "x.py"], "folder": "/"}),
        ("fits", {"model": "~/.ssh/config"}),
    )
    for result in answers[:5]:
        assert f"expected one below {inside}" in refusal(result)
    assert answers[5].is_error, "no home of anybody is opened"


def test_a_value_is_never_an_option(tmp_path):
    target = tmp_path / "written"
    trace = tmp_path / "trace.parquet"
    trace.write_bytes((ROOT / "env/traces/growing-loop.parquet").read_bytes())
    _, answers = ask(
        tmp_path,
        ("replay", {"trace": str(trace), "conf": f"x --results {target}"}),
        ("leaks", {"trace": str(trace), "gpu": f"--out={target}"}),
        ("diagnose", {"box": "--message=/etc/passwd"}),
        ("leaks", {"trace": "trace\0.parquet"}),
        ("fix", {"command": ["python\0"], "folder": "."}),
        ("replay", {"trace": str(trace), "capacity_bytes": -1}),
    )
    assert all(result.is_error for result in answers)
    assert not target.exists()


def test_wrong_use_is_the_one_line_of_the_command(tmp_path):
    _, (result,) = ask(tmp_path, ("leaks", {"trace": "nothing.pickle"}))
    assert "nothing.pickle does not exist" in refusal(result)


def test_the_answer_behind_the_output_of_a_program_is_found():
    answer = child.parsed(
        b'epoch 1\n{\n "loss": 1\n}\nwarning \xff\n{\n "verdict": "fits",\n "peak": {\n  "bytes": 1\n }\n}\n'
    )
    assert answer == {"verdict": "fits", "peak": {"bytes": 1}}
    for printed in (b"epoch 1\n{}\nno more\n", b"", b"\xff"):
        with pytest.raises(ValueError):
            child.parsed(printed)


STAND_IN = """
import json, sys, time
if sys.argv[1] == "replay":
    print("casebook: no such trace", file=sys.stderr)
elif sys.argv[1] == "monitor":
    time.sleep(600)
else:
    print(json.dumps({"of": "the program"}, indent=1), file=sys.stderr)
    print("step 1")
    print(json.dumps({"of": sys.argv[1], "read": sys.stdin.read()}, indent=1))
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A stand-in for the commands."""
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__main__.py").write_text(STAND_IN)
    monkeypatch.setattr(child, "CHECKOUT", tmp_path)


class Agent:
    """What an agent is told while it waits."""

    def __init__(self):
        self.told = []

    async def report_progress(self, progress, message):
        self.told.append(message)


@pytest.mark.parametrize("verb", ["fix", "rehearse", "diagnose"])
def test_the_answer_is_the_command_s_and_not_that_of_the_program_that_it_runs(commands, verb):
    async def ask():
        return await child.answer(Agent(), verb, text="half a letter \ud800")

    assert anyio.run(ask) == {"of": verb, "read": "half a letter ?"}


def test_the_last_line_of_a_command_without_an_answer_is_its_complaint(commands):
    async def ask():
        return await child.answer(Agent(), "replay")

    with pytest.raises(ToolError, match="no such trace"):
        anyio.run(ask)


def test_a_call_that_is_given_up_ends_its_command(commands):
    agent = Agent()

    async def give_up():
        with anyio.move_on_after(child.TICK_S * 1.5):
            await child.answer(agent, "monitor")

    anyio.run(give_up)
    assert agent.told == ["monitor has run for 2 s"]
    children = psutil.Process().children(recursive=True)
    assert not [process for process in children if "monitor" in process.cmdline()]


def test_what_the_workbook_itself_wrote_may_be_read(tmp_path):
    bundle = OUTPUTS / "captures" / "box.tar.gz"
    assert Tools([tmp_path]).below(str(bundle)) == str(bundle.resolve())


def test_every_agent_is_told_what_it_may_say(tmp_path):
    async def instructions():
        async with Client(server([tmp_path])) as client:
            return client.instructions

    assert "Never state more than it says" in anyio.run(instructions)


@pytest.mark.parametrize("root", ["missing", "file"])
def test_a_root_that_is_no_folder_is_refused(tmp_path, root):
    import subprocess

    (tmp_path / "file").touch()
    command = [
        sys.executable,
        str(ROOT / "helpers/__main__.py"),
        "mcp",
        "--root",
        str(tmp_path / root),
    ]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "expected a folder" in done.stderr

"""The server: each tool is a command of the workbook, with typed inputs and the JSON it prints.

A path must lie below a folder that the person named, or be a file that the workbook wrote. What
else an agent passes is a value of an option, never an option. No tool runs a command as root.

An agent reads the docstring of a tool and the descriptions of its inputs. A number of 0 and an
empty text stand for an input that the agent did not give.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from helpers import __version__
from helpers.ground.places import CHECKOUT, OUTPUTS
from helpers.look.boxes import recorded_names

from .child import Answer, answer

INSTRUCTIONS = CHECKOUT / "helpers" / "AGENTS.md"
"""What every agent is told: when to call what, and what it may say."""

Word = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""A text without a zero byte, with which no process can be started."""
Box = Annotated[
    Word, Field(description='"live", a recorded box, or the path of a bundle')
]
Trace = Annotated[
    Word, Field(description="the path of a torch memory snapshot or a trace")
]
Card = Annotated[Word, Field(description='a GPU by its name, such as "4090"')]
Amount = Annotated[int, Field(ge=0)]
Capacity = Annotated[
    Amount, Field(description="bytes of the card, in place of its name")
]
Held = Annotated[Amount, Field(description="bytes that others have of the card")]
Command = Annotated[
    list[Word], Field(description='such as ["python", "train.py"]', min_length=1)
]
Folder = Annotated[Word, Field(description="the path where the command is run")]
Seconds = Annotated[
    Amount, Field(description="end after so many, with the answer so far")
]


class Tools:
    """The tools, for the files below some folders."""

    def __init__(self, roots: Sequence[Path]):
        """``roots``: the folders that the person named, the first for relative paths."""
        self.roots = [root.resolve() for root in (*roots, OUTPUTS)]

    def below(self, path: str) -> str:
        """A path without links and "..". Raises ToolError where it lies in none of the folders."""
        real = (self.roots[0] / path).resolve()
        if not any(real.is_relative_to(root) for root in self.roots):
            folders = ", ".join(map(str, self.roots))
            raise ToolError(
                f"{path}: seen a path elsewhere; expected one below {folders}"
            )
        return str(real)

    def box(self, name: str) -> str:
        """How a command names a box: "live" or a recorded box's name unchanged, else the path of a
        bundle. Raises ToolError where that lies in none of the folders.
        """
        if name == "live" or name in recorded_names():
            return name
        return self.below(name)

    async def capture(self, context: Context) -> Answer:
        """Write an evidence bundle of this machine and say where it is. Uses no GPU memory."""
        return await answer(context, "capture")

    async def diagnose(self, context: Context, text: str = "", box: Box = "") -> Answer:
        """The cause of a failure, its evidence and the next step.

        text: an error message or a log, as it was printed. box: also the path of a torch memory
        snapshot (.pickle). One or both.
        """
        words = []
        if box:
            words.append(self.box(box))
        if text:
            words.append("--message=-")  # from standard input
        return await answer(context, "diagnose", *words, text=text)

    async def ttm(
        self, context: Context, box: Box = "live", target_bytes: Amount = 0
    ) -> Answer:
        """Every limit between the RAM and torch on an AMD APU, and how to raise the lowest one."""
        options = _options(target=target_bytes)
        return await answer(context, "ttm", self.box(box), *options)

    async def replay(
        self,
        context: Context,
        trace: Trace,
        conf: Word = "",
        capacity_bytes: Capacity = 0,
        held_bytes: Held = 0,
    ) -> Answer:
        """What torch's allocator does with a recorded trace under other settings, to the byte.

        conf: what PYTORCH_CUDA_ALLOC_CONF says.
        """
        options = _options(conf=conf, capacity=capacity_bytes, held=held_bytes)
        return await answer(context, "replay", self.below(trace), *options)

    async def whatif(
        self,
        context: Context,
        trace: Trace,
        gpu: Card = "",
        capacity_bytes: Capacity = 0,
    ) -> Answer:
        """The setting that saves a recorded run, or the bytes that are missing and their lines."""
        options = _options(gpu=gpu, capacity=capacity_bytes)
        return await answer(context, "whatif", self.below(trace), *options)

    async def leaks(
        self,
        context: Context,
        trace: Trace,
        gpu: Card = "",
        capacity_bytes: Capacity = 0,
    ) -> Answer:
        """Memory that grows from step to step in a recorded trace, and the line that keeps it."""
        options = _options(gpu=gpu, capacity=capacity_bytes)
        return await answer(context, "leaks", self.below(trace), *options)

    async def fits(
        self,
        context: Context,
        model: Word,
        gpu: Card = "",
        capacity_bytes: Capacity = 0,
        held_bytes: Held = 0,
        context_tokens: Amount = 0,
        server: Word = "",
    ) -> Answer:
        """Whether a model fits a card, its longest context, and the line that starts the server.

        model: the path of a config.json, a safetensors header, a GGUF file, a folder, or a server's
        log. server: llama.cpp, ollama, vllm, sglang or transformers.
        """
        options = _options(gpu=gpu, capacity=capacity_bytes, held=held_bytes)
        options += _options(context=context_tokens, server=server)
        return await answer(context, "fits", self.below(model), *options)

    async def rehearse(
        self,
        context: Context,
        command: Command,
        folder: Folder,
        gpu: Card = "",
        capacity_bytes: Capacity = 0,
        seconds: Seconds = 0,
    ) -> Answer:
        """Run a program of the person's on a simulated card: does it fit, and if not, why?"""
        options = _options(gpu=gpu, capacity=capacity_bytes, seconds=seconds)
        where = self.below(folder)
        return await answer(context, "rehearse", *options, "--", *command, folder=where)

    async def fix(
        self,
        context: Context,
        command: Command,
        folder: Folder,
        gpu: Card = "",
        capacity_bytes: Capacity = 0,
        seconds: Seconds = 180,  # as the command
    ) -> Answer:
        """Find a change with which a program fits a card, and prove it by running it there.

        The person's files are not changed: the answer has a diff.
        """
        options = _options(gpu=gpu, capacity=capacity_bytes, seconds=seconds)
        where = self.below(folder)
        return await answer(context, "fix", *options, "--", *command, folder=where)


def _options(**values: object) -> list[str]:
    """The options that an agent gave, each as one word with its value ("--gpu=4090"), so that no
    value can be read as an option.
    """
    return [f"--{name}={value}" for name, value in values.items() if value]


def server(roots: Sequence[Path]) -> MCPServer:
    """The server for the files below ``roots``. Its ``run()`` speaks over stdin and stdout."""
    tools = Tools(roots)
    instructions = INSTRUCTIONS.read_text(encoding="utf-8")
    mcp_server = MCPServer(
        "vram-casebook", version=__version__, instructions=instructions
    )
    for tool in (
        tools.capture,
        tools.diagnose,
        tools.ttm,
        tools.replay,
        tools.whatif,
        tools.leaks,
        tools.fits,
        tools.rehearse,
        tools.fix,
    ):
        mcp_server.add_tool(tool)
    return mcp_server

"""The server: each tool is a command of the workbook, with typed inputs and the JSON that it prints.

Sizes are bytes. A path must lie below one of the folders that the person named; everything else that
an agent passes is a value of an option, never an option. Nothing of the workbook leaves the machine,
and no tool runs a command as root: such commands are printed in the answers, for the person.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from helpers import __version__
from helpers.look.boxes import recorded_names

from .child import Refused, answer

INSTRUCTIONS = (
    "Exact answers about GPU memory. Each claim of an answer has a confidence (confirmed, likely, "
    "weak, cannot tell) and names its evidence by id: never state more than the confidence says, "
    "and give the person the next step as it is. Commands for root are for the person to run."
)
Answer = dict[str, Any]


class Tools:
    """The tools, for the files below some folders."""

    def __init__(self, roots: Sequence[Path]):
        self.roots = [root.resolve() for root in roots]

    def below(self, path: str) -> str:
        """A path as it really is. Raises ToolError where it lies in none of the folders."""
        real = (self.roots[0] / path).resolve()
        if not any(real.is_relative_to(root) for root in self.roots):
            folders = ", ".join(map(str, self.roots))
            raise ToolError(f"{path}: seen a path elsewhere; expected one below {folders}")
        return str(real)

    def box(self, name: str) -> str:
        """This machine, a recorded box by its name, or the path of a bundle."""
        return name if name == "live" or name in recorded_names() else self.below(name)

    async def capture(self, context: Context) -> Answer:
        """Write an evidence bundle of this machine and say where it is. Uses no GPU memory."""
        return await _ask(context, "capture")

    async def diagnose(self, context: Context, text: str = "", box: str = "") -> Answer:
        """The cause of a failure, its evidence and the next step.

        text: an error message or a log, as it was printed. box: "live", the name of a recorded
        box, or the path of a bundle or of a torch memory snapshot (.pickle). One or both.
        """
        arguments = [self.box(box)] if box else []
        if text:
            arguments.append("--message=-")
        return await _ask(context, "diagnose", *arguments, text=text)

    async def ttm(self, context: Context, box: str = "live", target_bytes: int = 0) -> Answer:
        """Every limit between the RAM and torch on an AMD APU, and how to raise the lowest one."""
        return await _ask(context, "ttm", self.box(box), *_options(target=target_bytes))

    async def replay(
        self,
        context: Context,
        trace: str,
        conf: str = "",
        capacity_bytes: int = 0,
        held_bytes: int = 0,
    ) -> Answer:
        """What torch's allocator does with a recorded trace under other settings, to the byte.

        conf: PYTORCH_CUDA_ALLOC_CONF. capacity_bytes: of the card. held_bytes: by others.
        """
        return await _ask(
            context,
            "replay",
            self.below(trace),
            *_options(conf=conf, capacity=capacity_bytes, held=held_bytes),
        )

    async def whatif(
        self, context: Context, trace: str, gpu: str = "", capacity_bytes: int = 0
    ) -> Answer:
        """The setting that saves a recorded run, or how many bytes are missing and in which lines."""
        return await _ask(
            context, "whatif", self.below(trace), *_options(gpu=gpu, capacity=capacity_bytes)
        )

    async def leaks(
        self, context: Context, trace: str, gpu: str = "", capacity_bytes: int = 0
    ) -> Answer:
        """Memory that grows from step to step in a recorded trace, and the line that keeps it."""
        return await _ask(
            context, "leaks", self.below(trace), *_options(gpu=gpu, capacity=capacity_bytes)
        )

    async def fits(
        self,
        context: Context,
        model: str,
        gpu: str = "",
        capacity_bytes: int = 0,
        held_bytes: int = 0,
        context_tokens: int = 0,
        server: str = "",
    ) -> Answer:
        """Whether a model fits a card, its longest context, and the line that starts the server.

        model: the path of a config.json, a safetensors header, a GGUF file, a folder, or a server's
        log. gpu: such as "4090". server: llama.cpp, ollama, vllm, sglang or transformers.
        """
        return await _ask(
            context,
            "fits",
            self.below(model),
            *_options(gpu=gpu, capacity=capacity_bytes, held=held_bytes),
            *_options(context=context_tokens, server=server),
        )

    async def rehearse(
        self,
        context: Context,
        command: list[str],
        folder: str,
        gpu: str = "",
        capacity_bytes: int = 0,
        seconds: int = 0,
    ) -> Answer:
        """Run a program of the person's on a simulated card: does it fit, and if not, why?

        command: such as ["python", "train.py"], run in folder; it runs as it is. seconds: end after
        so many, with the verdict so far.
        """
        options = _options(gpu=gpu, capacity=capacity_bytes, seconds=seconds)
        where = self.below(folder)
        return await _ask(context, "rehearse", *options, after=["--", *command], folder=where)

    async def fix(
        self,
        context: Context,
        command: list[str],
        folder: str,
        gpu: str = "",
        capacity_bytes: int = 0,
        seconds: int = 180,
    ) -> Answer:
        """Find a change with which a program fits a card, and prove it by running it there.

        The person's files are not changed: the answer has a diff. seconds: of the search.
        """
        options = _options(gpu=gpu, capacity=capacity_bytes, seconds=seconds)
        where = self.below(folder)
        return await _ask(context, "fix", *options, after=["--", *command], folder=where)


async def _ask(
    context: Context,
    verb: str,
    *arguments: str,
    text: str = "",
    after: Sequence[str] = (),
    folder: str = "",
) -> Answer:
    async def report(seconds: float, message: str) -> None:
        await context.report_progress(seconds, message=message)

    try:
        answered = await answer([verb, *arguments, "--json", *after], report, text, folder)
    except Refused as error:
        raise ToolError(str(error)) from error
    return answered if isinstance(answered, dict) else {"answer": answered}


def _options(**values: object) -> list[str]:
    """The options that an agent gave; a value is never an option of its own."""
    return [f"--{name}={value}" for name, value in values.items() if value]


def server(roots: Sequence[Path]) -> MCPServer:
    """The server for the files below ``roots``; ``run()`` of it speaks over standard input and output."""
    tools = Tools(roots)
    made = MCPServer("vram-casebook", version=__version__, instructions=INSTRUCTIONS)
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
        made.add_tool(tool)
    return made

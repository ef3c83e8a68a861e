"""Writes an evidence bundle of this box: files, tables, and the output of commands, in the order that
disturbs a GPU least.

Needs only Python 3.8 or later, no root and no network, and uses no GPU memory in its own process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from helpers import __version__
from helpers.ground.child import CHECKOUT, OUTPUTS
from helpers.ground.places import PROGRAM
from helpers.ground.tables import data
from helpers.ground.units import now, plain
from helpers.look.bundle import Bundle, BundleWriter, JsonRow

from . import (
    access,
    commands,
    environment,
    files,
    framework,
    hanging,
    kernel_log_capture,
    machine,
    nvidia,
    pci,
    processes,
    ttm,
)
from .archive import BundleError, check_target
from .collection import Collection, NoRows, lost_status

if TYPE_CHECKING:
    from .collection import Rows

KERNEL_LOG_LIMIT_BYTES = 20 << 20
NVML_LIMIT_S = 20.0
TORCH_LIMIT_S = 90.0
HANGS_LIMIT = 2
PRODUCER_LIMIT_S = 15.0


@dataclass(frozen=True)
class Options:
    """What to look at.

    A ``root`` other than / is a tree copied or mounted from a box; no command runs for one.
    """

    root: str = "/"
    commands: bool = True
    torch: bool = True
    torch_devices: bool = False
    torch_python: str = ""
    box: str = ""

    @property
    def not_this_box(self) -> str:
        if self.root == "/":
            return ""
        return "--root given: this process and its commands say nothing of that tree"

    @property
    def no_commands(self) -> str:
        if self.not_this_box or self.commands:
            return self.not_this_box
        return "--no-commands given"

    @property
    def no_torch(self) -> str:
        if self.not_this_box or self.torch:
            return self.not_this_box
        return "--no-torch given"


def in_child(produce: Callable[[], Rows], limit_s: float = PRODUCER_LIMIT_S) -> Rows:
    """The rows of a producer that runs in a child. Raises NoRows."""
    for _, rows, why in hanging.read_each((0,), lambda _: produce(), limit_s):
        if rows is None:
            raise NoRows(why)
        yield from rows


def capture(options: Options = Options()) -> Bundle:
    """This box, or the tree at ``options.root``, as a bundle in memory."""
    collection = measure(options)
    if collection.interrupted:
        raise KeyboardInterrupt
    return collection.writer.bundle()


def measure(
    options: Options, say: Callable[[str], None] = lambda _line: None
) -> Collection:
    """Take everything; each step's line goes to ``say``.

    Ctrl-C ends it early: what was not reached is then not in the bundle.
    """
    kind = "recorded" if options.not_this_box else "live"
    name = options.box or box_name(options.root)
    collection = Collection(BundleWriter(name, kind, __version__, now()))
    tables = _tables(options)
    nvml = partial(nvidia.collect_nvml, NVML_LIMIT_S)
    torch = partial(_torch, options)
    # What may open a device comes after what only reads, torch's own child last.
    steps: dict[str, Callable[[], None]] = {
        "kernel and driver files": partial(_files, collection, options),
        **{
            table: partial(collection.table, table, rows, unless)
            for table, (rows, unless) in tables.items()
        },
        "kernel log": partial(_kernel_log, collection, options),
        "vendor tools": partial(_commands, collection, options),
        "NVML": partial(collection.table, "nvml", nvml, options.no_commands),
        "torch": partial(collection.table, "torch", torch, options.no_torch),
    }
    try:
        for name, step in steps.items():
            before = len(collection.items)
            began = time.monotonic()
            try:
                step()
            # A fault in one reader must not lose the evidence of the others.
            except Exception as error:  # noqa: BLE001
                collection.faults.append(f"{name}: {type(error).__name__}: {error}")
            count = len(collection.items) - before
            seconds = time.monotonic() - began
            say(f"{name}: {count} sources in {seconds:.1f} s")
    except KeyboardInterrupt:
        collection.interrupted = True
    return collection


def _tables(options: Options) -> dict[str, tuple[Callable[[], Rows], str]]:
    """The tables that only read, in their order: what makes the rows, and why it shall not, or
    empty.
    """
    elsewhere = options.not_this_box
    root = options.root
    bus = "" if os.path.isdir(root.rstrip("/") + pci.DEVICES) else "no such file"

    def child(read: Callable[[Path], Rows]) -> Callable[[], Rows]:
        return partial(in_child, partial(read, Path(root)))

    return {
        "host": (child(machine.collect_host), ""),
        "pci_devices": (child(pci.collect_pci), bus),
        "initramfs": (child(ttm.collect_initramfs), ""),
        "processes": (partial(processes.walk_processes, root), ""),
        "device_files": (partial(processes.walk_device_files, root), ""),
        "identity": (partial(in_child, access.collect_identity), elsewhere),
        "limits": (environment.collect_limits, elsewhere),
        "environment": (environment.collect_environment, elsewhere),
        "access": (access.walk_access, elsewhere),
    }


def _files(collection: Collection, options: Options) -> None:
    by_source: dict[str, files.FoundPath] = {}
    groups = machine.cgroup_files(Path(options.root))
    for pattern in sorted({*files.sources("files"), *groups}):
        for item in files.find(options.root, pattern):
            by_source.setdefault(item.source, item)
    readable = [item.source for item in by_source.values() if item.status == "ok"]
    for item in by_source.values():
        if item.status != "ok":
            collection.add(item.source, None, item.status, item.why)
    began = time.monotonic()
    read = partial(files.read, options.root)
    for source, answer, why in hanging.read_each(readable, read, group=os.path.dirname):
        content = None
        status = lost_status(why)
        if answer is not None:
            content, status, why = answer
        collection.add(source, content, status, why, time.monotonic() - began)
        began = time.monotonic()


def _commands(collection: Collection, options: Options) -> None:
    hangs: Counter[str] = Counter()
    for source in files.sources("command"):
        argv = source.split()
        unless = options.no_commands
        if not unless and hangs[argv[0]] == HANGS_LIMIT:
            unless = f"not run: {argv[0]} hung {HANGS_LIMIT} times before"
        if unless:
            collection.add(source, None, "not_available", unless, kind="command")
            continue
        ended = commands.run(argv)
        if ended.status == "timeout":
            hangs[argv[0]] += 1
        text: bytes | None = ended.text
        if ended.status in ("not_available", "not_allowed"):
            text = None
        collection.add(
            source, text, ended.status, ended.why, ended.seconds, ended.exit, "command"
        )


def _kernel_log(collection: Collection, options: Options) -> None:
    unless = options.no_commands
    if unless:
        collection.add("dmesg", None, "not_available", unless, kind="command")
        return
    for tried in kernel_log_capture.collect(KERNEL_LOG_LIMIT_BYTES):
        kind = "file" if tried.name.startswith("/") else "command"
        collection.add(tried.name, tried.content, tried.status, tried.why, kind=kind)


def _torch(options: Options) -> list[JsonRow]:
    """What the interpreter that owns torch says of it, in a child of its own."""
    rows = framework.collect(
        _torch_python(options), TORCH_LIMIT_S, options.torch_devices
    )
    for row in rows:
        if row.get("python"):
            row["python"] = environment.without_names(str(row["python"]))
    return rows


def _torch_python(options: Options) -> str:
    if options.torch_python:
        return options.torch_python
    recorded = framework.recorded_python()
    if recorded and os.access(recorded, os.X_OK):
        return recorded
    return shutil.which("python3", path=commands.search_path()) or sys.executable


def box_name(root: str) -> str:
    """A name for the box: the same at each capture, and without its host name."""
    identity = files.text(root, "/etc/machine-id").strip()
    if not identity and root == "/":
        identity = os.uname().nodename
    elif not identity:
        identity = os.path.realpath(root)
    digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()
    return f"box-{digest[:6]}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().partition("usage: ")[2].strip()
        raise BundleError(f"{message}; expected: {usage}")

    # argparse is silent where it cannot be written.
    def print_help(self, _file: object = None) -> None:
        print(self.format_help(), end="", flush=True)


def _options(argv: list[str] | None) -> argparse.Namespace:
    name = f"{PROGRAM} capture"
    if not CHECKOUT.is_dir():
        name = PROGRAM  # the one file that holds this command alone
    about = "\n\n".join(textwrap.fill(part, 80) for part in str(__doc__).split("\n\n"))
    parser = _Parser(
        name, None, about, f"example: {name} --out box.tar.gz", allow_abbrev=False
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for option, words in data("look/capture")["options"].items():
        flag, _, value = option.partition(" ")
        if value:
            parser.add_argument(flag, help=words, metavar=value, default="")
        else:
            parser.add_argument(flag, help=words, action="store_true")
    return parser.parse_args(argv)


def _checked(arguments: argparse.Namespace) -> tuple[Options, Path]:
    """Options and where to write; bad use is refused before anything is measured."""
    root = os.path.abspath(arguments.root or "/")
    if not os.path.isdir(root) or not os.access(root, os.R_OK | os.X_OK):
        expected = "expected a tree with proc and sys in it"
        raise BundleError(
            f"--root {arguments.root}: no folder that can be listed; {expected}"
        )
    if os.path.samefile(root, "/"):
        root = "/"
    python = arguments.torch_python
    if python:
        program = shutil.which(python)
        if program is None:
            raise BundleError(
                f"--torch-python {python}: no such program; expected a Python's path"
            )
        python = os.path.abspath(program)
    box = arguments.box
    if box and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", box):
        raise BundleError(
            f"--box {box!r}: expected up to 64 letters, digits, dots, dashes"
        )
    options = Options(
        root=root,
        torch_python=python,
        commands=not arguments.no_commands,
        torch=not arguments.no_torch,
        torch_devices=arguments.torch_devices,
        box=box,
    )
    if arguments.out:
        out = Path(arguments.out)
    else:
        os.umask(0o077)  # it holds what the kernel says to root alone
        out = _default_out(options)
    if out.name.endswith((".zip", ".tar", ".tar.xz", ".tar.bz2", ".zst")):
        raise BundleError(
            f"--out {out}: expected a name that ends in .tar.gz, or a folder"
        )
    check_target(out, arguments.force)
    return options, out


def _default_out(options: Options) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    out = Path(f"{options.box or box_name(options.root)}-{stamp}.tar.gz")
    # Without a checkout it is a file to copy to a box, and writes where it is started.
    if CHECKOUT.is_dir():
        out = OUTPUTS / "captures" / out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        do = "choose an --out that you may write to"
        raise BundleError(f"{out.parent}: {error.strerror}; {do}") from error
    return out


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(f"  {line}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """The command: 0 written, 2 wrong use in one line, 130 interrupted (what was measured until
    then is written).
    """
    mask = os.umask(0o077)
    os.umask(mask)
    try:
        arguments = _options(argv)
        options, out = _checked(arguments)
        began = time.monotonic()
        # `timeout 60 ... capture` and a stopped job are interruptions too: keep what there is.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            collection = measure(options, _say)
            collection.writer.write(out, arguments.force)
        finally:
            signal.signal(signal.SIGTERM, before)
    except BundleError as error:
        print("capture: " + plain(str(error).replace("\n", " ")), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("capture: interrupted; nothing was written", file=sys.stderr)
        return 130
    finally:
        os.umask(mask)
    seconds = round(time.monotonic() - began, 1)
    if arguments.json:
        summary = {
            "box": collection.writer.box,
            "out": str(out),
            "seconds": seconds,
            "interrupted": collection.interrupted,
            "faults": collection.faults,
            "counts": collection.counts(),
        }
        print(json.dumps(summary, indent=1))
    else:
        head = f"{collection.writer.box}, {seconds} s"
        print("\n".join([head, *collection.report(), f"Written to {out}"]))
    if collection.interrupted:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

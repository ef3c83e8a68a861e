"""Writes an evidence bundle of this box: files, tables, and the output of commands, in the order
that disturbs a GPU least.

Needs only Python 3.8 or later, no root and no network, and uses no GPU memory in its own process.
It is longer than other files because it has a command line of its own, which works without a
set-up.
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
from typing import TYPE_CHECKING, NamedTuple, NoReturn

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
"""Without persistence mode the first client initialises each GPU, which takes 1 to 3 seconds
(NVIDIA driver persistence).
"""
TORCH_LIMIT_S = 90.0
"""For ``import torch`` from a slow disk, which reads gigabytes of libraries."""
HANGS_LIMIT = 2
"""After so many hung calls of one vendor tool its other calls are left out."""
PRODUCER_LIMIT_S = 15.0
"""For a table that is read in a child process; three times as long as a single file has."""
INTERRUPTED = 130
"""The exit code that a shell shows for a program that SIGINT ended: 128 + 2."""


@dataclass(frozen=True)
class Options:
    """What to look at.

    A ``root`` other than / is a file tree copied or mounted from a box; no command runs then.
    ``torch_devices``: ask torch for its devices, too, for which it takes a context on each GPU.
    ``torch_python``: the Python that has torch; empty: find it. ``box``: a name for it, or empty.
    """

    root: str = "/"
    commands: bool = True
    torch: bool = True
    torch_devices: bool = False
    torch_python: str = ""
    box: str = ""

    # Why a part of the capture is left out; empty if it is not.

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
    """The rows that ``produce`` returns when it runs in a child process. Raises NoRows."""
    # read_each calls it for each key of a list; which key does not matter here.
    for _, rows, why in hanging.read_each((0,), lambda _: produce(), limit_s):
        if rows is None:
            raise NoRows(why)
        yield from rows


def capture(options: Options = Options()) -> Bundle:
    """A bundle in memory of this box, or of the file tree at ``options.root``."""
    collection = measure(options)
    if collection.interrupted:
        raise KeyboardInterrupt
    return collection.writer.bundle()


def measure(
    options: Options, say: Callable[[str], None] = lambda _line: None
) -> Collection:
    """Collect everything that ``options`` ask for; ``say`` gets a line about each step.

    Ctrl-C ends it early; the bundle then lacks the steps that were not reached.
    """
    kind = "live"
    if options.not_this_box:
        kind = "recorded"
    box = options.box
    if not box:
        box = box_name(options.root)
    collection = Collection(BundleWriter(box, kind, __version__, now()))
    try:
        for name, step in _steps(collection, options).items():
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


def _steps(collection: Collection, options: Options) -> dict[str, Callable[[], None]]:
    """The steps of a capture by their names, in their order: first those that only read, then
    those that may open a device, and torch, which may take memory of one, last.
    """
    nvml = partial(nvidia.collect_nvml, NVML_LIMIT_S)
    torch = partial(_torch, options)
    steps: dict[str, Callable[[], None]] = {}
    steps["kernel and driver files"] = partial(_files, collection, options)
    for table, source in _tables(options).items():
        steps[table] = partial(collection.table, table, source.read, source.why_not)
    steps["kernel log"] = partial(_kernel_log, collection, options)
    steps["vendor tools"] = partial(_commands, collection, options)
    steps["NVML"] = partial(collection.table, "nvml", nvml, options.no_commands)
    steps["torch"] = partial(collection.table, "torch", torch, options.no_torch)
    return steps


class _TableSource(NamedTuple):
    """``read`` returns the rows of a table. ``why_not``: why it is not called; empty: it is."""

    read: Callable[[], Rows]
    why_not: str = ""


def _tables(options: Options) -> dict[str, _TableSource]:
    """The tables of files and of this process, in the order in which they are read. Reading them
    opens no device, except for ``access``, which opens each device node once.

    A read that may hang takes place in a child process, which can be given up: of most tables as a
    whole; in functions named ``walk_`` one process or node after another, so that one that hangs
    loses no other. Limits and variables of this process need no child.
    """
    elsewhere = options.not_this_box
    root = options.root
    no_pci = ""
    if not os.path.isdir(root.rstrip("/") + pci.DEVICES):
        no_pci = "no such file"

    def child(read: Callable[[Path], Rows]) -> Callable[[], Rows]:
        return partial(in_child, partial(read, Path(root)))

    return {
        "host": _TableSource(child(machine.collect_host)),
        "pci_devices": _TableSource(child(pci.collect_pci), no_pci),
        "initramfs": _TableSource(child(ttm.collect_initramfs)),
        "processes": _TableSource(partial(processes.walk_processes, root)),
        "device_files": _TableSource(partial(processes.walk_device_files, root)),
        "identity": _TableSource(partial(in_child, access.collect_identity), elsewhere),
        "limits": _TableSource(environment.collect_limits, elsewhere),
        "environment": _TableSource(environment.collect_environment, elsewhere),
        "access": _TableSource(access.walk_access, elsewhere),
    }


def _files(collection: Collection, options: Options) -> None:
    """Add every file of sources.json and of this process's control groups."""
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
    # Files of one folder belong to one device: after two of them hung the others are not read.
    for source, answer, why in hanging.read_each(readable, read, group=os.path.dirname):
        content = None
        status = lost_status(why)
        if answer is not None:
            content, status, why = answer
        collection.add(source, content, status, why, time.monotonic() - began)
        began = time.monotonic()


def _commands(collection: Collection, options: Options) -> None:
    """Add the output of every command of sources.json."""
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
    """Add the kernel's log from every source that was tried: files of logs, and commands."""
    unless = options.no_commands
    if unless:
        collection.add("dmesg", None, "not_available", unless, kind="command")
        return
    for tried in kernel_log_capture.collect(KERNEL_LOG_LIMIT_BYTES):
        kind = "command"
        if tried.name.startswith("/"):
            kind = "file"
        collection.add(tried.name, tried.content, tried.status, tried.why, kind=kind)


def _torch(options: Options) -> list[JsonRow]:
    """The table ``torch``, with the home folder in the path of its Python written ``~``."""
    rows = framework.collect(
        _torch_python(options), TORCH_LIMIT_S, options.torch_devices
    )
    for row in rows:
        if row.get("python"):
            row["python"] = environment.without_names(str(row["python"]))
    return rows


def _torch_python(options: Options) -> str:
    """The Python to ask for torch: the one of the options, else that of the set-up, else the first
    on the path, else this one.
    """
    if options.torch_python:
        return options.torch_python
    recorded = framework.recorded_python()
    if recorded and os.access(recorded, os.X_OK):
        return recorded
    on_path = shutil.which("python3", path=commands.search_path())
    if on_path is None:
        return sys.executable
    return on_path


def box_name(root: str) -> str:
    """A name for the box, such as box-3f9a01: the same at each capture, and telling nothing of the
    machine id (else the host name, else the path of the tree) from which it is made.
    """
    identity = files.text(root, "/etc/machine-id").strip()
    if not identity and root == "/":
        identity = os.uname().nodename
    elif not identity:
        identity = os.path.realpath(root)
    digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()
    return f"box-{digest[:6]}"  # enough to tell a person's boxes apart


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().partition("usage: ")[2].strip()
        raise BundleError(f"{message}; expected: {usage}")

    def print_help(self, _file: object = None) -> None:
        # argparse's own is silent if it cannot write.
        print(self.format_help(), end="", flush=True)


def _options(argv: list[str] | None) -> argparse.Namespace:
    """The command line with the options of capture.json. Raises BundleError for wrong use."""
    name = f"{PROGRAM} capture"
    if not CHECKOUT.is_dir():
        name = PROGRAM  # capture.pyz, which captures without a verb
    paragraphs = str(__doc__).split("\n\n")
    parser = _Parser(
        prog=name,
        description="\n\n".join(textwrap.fill(part, 80) for part in paragraphs),
        epilog=f"example: {name} --out box.tar.gz",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for option, words in data("look/capture")["options"].items():
        flag, _, value = option.partition(" ")
        if value:
            parser.add_argument(flag, help=words, metavar=value, default="")
        else:
            parser.add_argument(flag, help=words, action="store_true")
    return parser.parse_args(argv)


def _checked(arguments: argparse.Namespace) -> tuple[Options, Path]:
    """What to look at, and where to write. Raises BundleError for wrong use, so before anything is
    captured.
    """
    box = arguments.box
    if box and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", box):
        raise BundleError(
            f"--box {box!r}: expected up to 64 letters, digits, dots, dashes"
        )
    options = Options(
        root=_checked_root(arguments.root),
        torch_python=_checked_python(arguments.torch_python),
        commands=not arguments.no_commands,
        torch=not arguments.no_torch,
        torch_devices=arguments.torch_devices,
        box=box,
    )
    if arguments.out:
        out = Path(arguments.out)
    else:
        # It may have lines of the kernel that only root may read; main() sets the umask back.
        os.umask(0o077)
        out = _default_out(options)
    if out.name.endswith((".zip", ".tar", ".tar.xz", ".tar.bz2", ".zst")):
        raise BundleError(
            f"--out {out}: expected a name that ends in .tar.gz, or a folder"
        )
    check_target(out, arguments.force)
    return options, out


def _checked_root(named: str) -> str:
    """The file tree of --root, or / without the option."""
    if not named:
        return "/"
    root = os.path.abspath(named)
    if not os.path.isdir(root) or not os.access(root, os.R_OK | os.X_OK):
        expected = "expected a tree with proc and sys in it"
        raise BundleError(f"--root {named}: no folder that can be listed; {expected}")
    if os.path.samefile(root, "/"):
        return "/"
    return root


def _checked_python(named: str) -> str:
    """The path of --torch-python, or empty without the option."""
    if not named:
        return ""
    program = shutil.which(named)
    if program is None:
        raise BundleError(
            f"--torch-python {named}: no such program; expected a Python's path"
        )
    return os.path.abspath(program)


def _default_out(options: Options) -> Path:
    """A new name in the folder of the captures, which it makes; for capture.pyz, which a person
    copies to a box, in the current folder.
    """
    box = options.box
    if not box:
        box = box_name(options.root)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    out = Path(f"{box}-{stamp}.tar.gz")
    if CHECKOUT.is_dir():
        out = OUTPUTS / "captures" / out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        do = "choose an --out that you may write to"
        raise BundleError(f"{out.parent}: {error.strerror}; {do}") from error
    return out


def _say(line: str) -> None:
    """Show the progress to a person."""
    if sys.stderr.isatty():
        print(f"  {line}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 if the bundle was written, 2 for wrong use, which
    one line explains, 130 if it was interrupted (what was captured until then is written).
    """
    own_umask = os.umask(0o077)  # the only way to read it is to set it
    os.umask(own_umask)
    try:
        arguments = _options(argv)
        options, out = _checked(arguments)
        began = time.monotonic()
        # `timeout 60 ... capture` and a stopped job send SIGTERM: write what there is, as at
        # Ctrl-C.
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
        return INTERRUPTED
    finally:
        os.umask(own_umask)
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
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

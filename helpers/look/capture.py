"""Takes the evidence bundle of a box: files, tables, commands, in the order that disturbs a GPU least; torch's own child last.

Needs the standard library of Python 3.8 alone, no root and no network, and takes no GPU context in its own process.
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
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .. import __version__
from . import (
    access,
    commands,
    drm,
    environment,
    files,
    framework,
    guard,
    kernel_log,
    kfd,
    machine,
    nvidia,
    pci,
    processes,
    rocm,
    ttm,
)
from .archive import BUNDLE_LIMIT_BYTES, MEMBER_LIMIT_BYTES, BundleError, check_target
from .bundle import Bundle, BundleWriter, Item
from .reading import show_bytes

if TYPE_CHECKING:
    Rows = Iterable[dict[str, Any]]

# The one place that names the readers of files and commands: what each needs is in its FILES and COMMANDS.
READERS = (machine, drm, kfd, ttm, rocm, nvidia)
KERNEL_LOG_LIMIT_BYTES = 20 << 20
NVML_LIMIT_S = 20.0
TORCH_LIMIT_S = 90.0
HANGS_LIMIT = 2
TABLE_LIMIT_BYTES = MEMBER_LIMIT_BYTES - (4 << 20)
COLLECTION_LIMIT_BYTES = BUNDLE_LIMIT_BYTES - (16 << 20)
PRODUCER_LIMIT_S = 15.0
WORDS = {
    "ok": "read",
    "truncated": "cut",
    "timeout": "hung",
    "not_available": "not there",
    "not_allowed": "not allowed",
}
FEW = 5
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Options:
    """What to look at. A ``root`` other than / is a tree copied or mounted from a box; no command runs for one."""

    root: str = "/"
    with_args: bool = False
    commands: bool = True
    torch: bool = True
    torch_devices: bool = False
    torch_python: str = ""
    box: str = ""

    @property
    def not_this_box(self) -> str:
        why = "--root given: this process and its commands say nothing of that tree"
        return "" if self.root == "/" else why

    @property
    def no_commands(self) -> str:
        return self.not_this_box or ("" if self.commands else "--no-commands given")


@dataclass(frozen=True)
class Table:
    """A table to fill. It is recorded as not available where ``unless`` says why, or the folder it ``needs`` is not there.

    ``answer``: a table of one row without a value, which then speaks for the whole table (NVML, torch).
    """

    name: str
    rows: Callable[[], Rows]
    needs: str = ""
    unless: str = ""
    answer: bool = False


class NoRows(Exception):
    """There are no rows: the child that makes them hung, died or failed, and how."""


def in_child(produce: Callable[[], Rows], limit_s: float = PRODUCER_LIMIT_S) -> Rows:
    """The rows of a producer that runs in a child. Raises NoRows."""
    for _, rows, why in guard.each((0,), lambda _: produce(), limit_s):
        if rows is None:
            raise NoRows(why)
        yield from rows


def lost_status(why: str) -> str:
    """The item status of a reading that guard.each gave up."""
    return "timeout" if why.startswith("hung") else "not_available"


class Collection:
    """Adds to a BundleWriter within the limits that a bundle's reader accepts."""

    def __init__(self, writer: BundleWriter):
        self.writer = writer
        self.items: list[Item] = []
        self.interrupted = False
        self.faults: list[str] = []
        self._planned: dict[str, str] = {}
        self._bytes = 0

    def plan(self, kind: str, sources: Iterable[str]) -> None:
        """Name sources that will be looked at."""
        for source in sources:
            self._planned.setdefault(source, kind)

    def add(
        self,
        source: str,
        content: bytes | None,
        status: str,
        why: str = "",
        seconds: float = 0.0,
        exited: int | None = None,
        kind: str = "file",
    ) -> None:
        """Add one source, or say that the bundle is full."""
        self._planned[source] = ""
        if content is not None and self._bytes + len(content) > COLLECTION_LIMIT_BYTES:
            content, status = None, "not_available"
            why = f"left out: the bundle has reached {COLLECTION_LIMIT_BYTES >> 20} MiB"
        self._bytes += len(content or b"")
        more: dict[str, Any] = {"status": status, "why": why, "seconds": seconds, "exit": exited}
        self.items.append(self.writer.add(kind, source, content, **more))

    def rest(self, why: str) -> None:
        """Mark everything that was planned and not reached."""
        for source, kind in self._planned.items():
            if kind:
                self.add(source, None, "not_available", why, kind=kind)

    def table(self, table: Table, root: str) -> None:
        """Fill a table row by row; what it has is kept when it is interrupted."""
        began, lines, size, status, why = time.monotonic(), [], 0, "ok", ""
        try:
            if table.unless:
                raise NoRows(table.unless)
            if table.needs:
                os.listdir(root.rstrip("/") + table.needs)
            row: dict[str, Any] = {}
            for row in table.rows():
                lines.append(json.dumps(row, sort_keys=True).encode() + b"\n")
                size += len(lines[-1])
                if size > TABLE_LIMIT_BYTES:
                    size -= len(lines.pop())
                    most = f"{TABLE_LIMIT_BYTES >> 20} MiB"
                    status, why = "truncated", f"cut after {len(lines)} rows ({most})"
                    break
            nothing = row.get("status") in ("not_available", "not_allowed")
            if table.answer and len(lines) == 1 and nothing:
                status, why = row["status"], str(row.get("why") or "no reason given")
        except OSError as error:
            status, why = files.fault(error)
        except NoRows as error:
            status, why = lost_status(str(error)), str(error)
        except KeyboardInterrupt:
            if lines:
                why = f"interrupted after {len(lines)} rows"
                self.add(table.name, b"".join(lines), "truncated", why, time.monotonic() - began)
            raise
        content = b"".join(lines) if lines or status == "ok" else None
        self.add(table.name, content, status, why, time.monotonic() - began)

    def counts(self) -> dict[str, int]:
        """How many sources of each status, commonest first."""
        return dict(Counter(item.status for item in self.items).most_common())

    def report(self) -> list[str]:
        """What a person reads of it: the counts, then what hung, was refused, cut or unseen, a few lines of each."""
        counts = ", ".join(f"{count} {WORDS[status]}" for status, count in self.counts().items())
        lines = [f"{len(self.items)} sources, {show_bytes(self._bytes)}: {counts}"]
        for status in ("timeout", "not_allowed", "truncated"):
            head = WORDS[status].capitalize()
            some = [item for item in self.items if item.status == status]
            lines += [f"{head}: {item.source}: {item.why}" for item in some[:FEW]]
            lines += [f"{head}: {len(some) - FEW} more"] if len(some) > FEW else []
        bundle = self.writer.bundle()
        refused = sum(row.get("status") == "not_allowed" for row in bundle.table("device_files"))
        if refused:
            whose = f"the open files of {refused} process{'es' if refused > 1 else ''}"
            lines.append(f"Not allowed: {whose}, which may hold a GPU")
        if any(row.get("init_pid_ns") is False for row in bundle.table("identity")):
            unseen = "processes outside it, which may hold a GPU too"
            lines.append("Not visible from this container: " + unseen)
        lines += [f"Fault in this program, please report it: {fault}" for fault in self.faults]
        if self.interrupted:
            lines.append("Interrupted: what was not reached is marked so in the bundle")
        return lines


def capture(options: Options = Options()) -> Bundle:
    """This box, or the tree at ``options.root``, as a bundle in memory."""
    collection = measure(options)
    if collection.interrupted:
        raise KeyboardInterrupt
    return collection.writer.bundle()


def measure(options: Options, say: Callable[[str], None] = lambda line: None) -> Collection:
    """Take everything; each step's line goes to ``say``. Ctrl-C ends it early, with the rest named as not captured."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kind = "recorded" if options.not_this_box else "live"
    name = options.box or box_name(options.root)
    collection = Collection(BundleWriter(name, kind, __version__, stamp))
    tables = _tables(options)
    steps: dict[str, Callable[[], None]] = {
        "kernel and driver files": partial(_files, collection, options),
        **{name: partial(_fill, collection, tables[name], options.root) for name in tables},
        "kernel log": partial(_kernel_log, collection, options),
        "vendor tools": partial(_commands, collection, options),
    }
    # What may open a device comes after what only reads, torch's own child last.
    steps.update({name: steps.pop(name) for name in ("NVML", "torch")})
    collection.plan("file", (table.name for some in tables.values() for table in some))
    collection.plan("command", (" ".join(argv) for argv in _argvs()))
    try:
        for name, step in steps.items():
            before, began = len(collection.items), time.monotonic()
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a fault in one reader must not lose the evidence of the others
                collection.faults.append(f"{name}: {type(error).__name__}: {error}")
            say(
                f"{name}: {len(collection.items) - before} sources in {time.monotonic() - began:.1f} s"
            )
        collection.rest(
            "not captured: a fault in this program (" + "; ".join(collection.faults) + ")"
        )
    except KeyboardInterrupt:
        collection.interrupted = True
        collection.rest("not captured: interrupted")
    return collection


def _fill(collection: Collection, tables: Iterable[Table], root: str) -> None:
    for table in tables:
        collection.table(table, root)


def _tables(options: Options) -> dict[str, tuple[Table, ...]]:
    """The tables of each step, in the order in which they are filled."""
    own, root = options.not_this_box, options.root
    no_torch = own or ("" if options.torch else "--no-torch given")

    def child(read: Callable[[Path], Rows]) -> Any:
        return partial(in_child, partial(read, Path(root)))

    listed = partial(processes.walk_processes, root, options.with_args)
    held = partial(processes.walk_device_files, root)
    nvml = partial(nvidia.collect_nvml, NVML_LIMIT_S)
    return {
        "this box": (
            Table("host", child(machine.collect_host)),
            Table("pci_devices", child(pci.collect_pci), "/sys/bus/pci/devices"),
            Table("initramfs", child(ttm.collect_initramfs)),
        ),
        "processes": (Table("processes", listed, "/proc"), Table("device_files", held, "/proc")),
        "access": (
            Table("identity", child(access.collect_identity), unless=own),
            Table("limits", environment.collect_limits, unless=own),
            Table("environment", environment.collect_environment, unless=own),
            Table("access", access.walk_access, unless=own),
        ),
        "NVML": (Table("nvml", nvml, unless=options.no_commands, answer=True),),
        "torch": (Table("torch", partial(_torch, options), unless=no_torch, answer=True),),
    }


def _files(collection: Collection, options: Options) -> None:
    found: dict[str, files.Found] = {}
    patterns = {pattern for reader in READERS for pattern in getattr(reader, "FILES", ())}
    for pattern in sorted(patterns.union(machine.cgroup_files(Path(options.root)))):
        for item in files.find(options.root, pattern):
            found.setdefault(item.source, item)
    there = [item.source for item in found.values() if item.status == "ok"]
    collection.plan("file", there)
    for item in found.values():
        if item.status != "ok":
            collection.add(item.source, None, item.status, item.why)
    began = time.monotonic()
    read = partial(files.read, options.root)
    for source, got, why in guard.each(there, read, group=os.path.dirname):
        content, status, why = got or (None, lost_status(why), why)
        collection.add(source, content, status, why, time.monotonic() - began)
        began = time.monotonic()


def _argvs() -> list[tuple[str, ...]]:
    argvs = (argv for reader in READERS for argv in getattr(reader, "COMMANDS", ()))
    return list(dict.fromkeys(argvs))


def _commands(collection: Collection, options: Options) -> None:
    hangs: Counter[str] = Counter()
    for argv in _argvs():
        source, unless = " ".join(argv), options.no_commands
        if not unless and hangs[argv[0]] == HANGS_LIMIT:
            unless = f"not run: {argv[0]} hung {HANGS_LIMIT} times before"
        if unless:
            collection.add(source, None, "not_available", unless, kind="command")
            continue
        got = commands.run(argv)
        hangs[argv[0]] += got.status == "timeout"
        text = None if got.status in ("not_available", "not_allowed") else got.text
        collection.add(source, text, got.status, got.why, got.seconds, got.exit, "command")


def _kernel_log(collection: Collection, options: Options) -> None:
    if options.no_commands:
        collection.add("dmesg", None, "not_available", options.no_commands, kind="command")
        return
    for source, content, status, why in kernel_log.collect(KERNEL_LOG_LIMIT_BYTES):
        kind = "file" if source.startswith("/") else "command"
        collection.add(source, content, status, why, kind=kind)


def _torch(options: Options) -> list[dict[str, Any]]:
    """What the interpreter that owns torch says of it, in a child of its own."""
    python = options.torch_python or _recorded_python()
    python = python or shutil.which("python3", path=commands.search_path()) or sys.executable
    rows = framework.collect(python, TORCH_LIMIT_S, options.torch_devices)
    for row in rows:
        for key in ("python", "path"):
            if row.get(key):
                row[key] = environment.without_names(str(row[key]))
    return rows


def _recorded_python() -> str:
    """The interpreter that owns torch as set-up found it; empty where there is no checkout, or it is gone."""
    try:
        kept = json.loads((CHECKOUT / ".venv" / "casebook.json").read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    python = kept.get("torch_python") if isinstance(kept, dict) else ""
    return python if isinstance(python, str) and os.access(python, os.X_OK) else ""


def box_name(root: str) -> str:
    """A name for the box: the same at each capture, and without its host name."""
    known = (files.read(root, "/etc/machine-id")[0] or b"").strip()
    place = os.uname().nodename if root == "/" else os.path.realpath(root)
    known = known or place.encode("utf-8", "surrogateescape")
    return "box-" + hashlib.sha256(known).hexdigest()[:6]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BundleError(f"{message}; expected: {self.format_usage()[len('usage: ') :].strip()}")


_OPTIONS = {
    "--out PATH": "a .tar.gz or a folder (default: outputs/captures/BOX-TIME.tar.gz in a checkout, else BOX-TIME.tar.gz here)",
    "--root DIR": "look at a tree with proc, sys and etc instead of this box",
    "--box NAME": "name of the box (default: made from its machine id)",
    "--with-args": "keep the arguments of every process; they may hold secrets",
    "--force": "replace what is at --out",
    "--no-commands": "run no program but torch's interpreter",
    "--no-torch": "do not ask torch",
    "--torch-devices": "also ask torch for its devices: takes a GPU context on each, in a child, for a moment",
    "--torch-python PATH": "the interpreter that has torch",
    "--json": "print the summary as JSON",
}


def _options(argv: list[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser("capture", description=__doc__, formatter_class=form, allow_abbrev=False)
    for option, words in _OPTIONS.items():
        flag, _, value = option.partition(" ")
        more: Any = {"metavar": value, "default": ""} if value else {"action": "store_true"}
        parser.add_argument(flag, help=words, **more)
    return parser.parse_args(argv)


def _checked(given: argparse.Namespace) -> tuple[Options, Path]:
    """Options and where to write; bad use is refused before anything is measured."""
    root, python = given.root or "/", given.torch_python
    if not os.path.isdir(root) or not os.access(root, os.R_OK | os.X_OK):
        expected = "expected a tree with proc and sys in it"
        raise BundleError(f"--root {root}: no folder that can be listed; {expected}")
    if python and not shutil.which(python):
        expected = "expected the path of a Python interpreter"
        raise BundleError(f"--torch-python {python}: no such program; {expected}")
    if given.box and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", given.box):
        expected = "expected up to 64 letters, digits, dots and dashes"
        raise BundleError(f"--box {given.box!r}: {expected}")
    options = Options(
        "/" if os.path.samefile(root, "/") else os.path.abspath(root),
        given.with_args,
        not given.no_commands,
        not given.no_torch,
        given.torch_devices,
        os.path.abspath(shutil.which(python) or "") if python else "",
        given.box,
    )
    out = Path(given.out) if given.out else _default_out(options)
    if out.name.endswith((".zip", ".tar", ".tar.xz", ".tar.bz2", ".zst")):
        raise BundleError(f"--out {out}: expected a name that ends in .tar.gz, or a folder")
    check_target(out, given.force)
    return options, out


def _default_out(options: Options) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    out = Path(f"{options.box or box_name(options.root)}-{stamp}.tar.gz")
    if (CHECKOUT / "pyproject.toml").is_file():
        out = CHECKOUT / "outputs" / "captures" / out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{error.strerror}; choose an --out that you may write to"
        raise BundleError(f"{out.parent}: {why}") from error
    return out


def main(argv: list[str] | None = None) -> int:
    """The command: 0 written, 2 wrong use in one line, 130 interrupted (what was measured until then is written)."""
    try:
        given = _options(argv)
        options, out = _checked(given)
        began = time.monotonic()
        # `timeout 60 ... capture` and a stopped job are interruptions too: keep what there is.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            collection = measure(options, _progress if sys.stderr.isatty() else lambda line: None)
            collection.writer.write(out, given.force)
        finally:
            signal.signal(signal.SIGTERM, before)
    except BundleError as error:
        print("capture: " + str(error).replace("\n", " "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("capture: interrupted; nothing was written", file=sys.stderr)
        return 130
    summary = {
        **{key: value for key, value in collection.writer.manifest().items() if key != "items"},
        "out": str(out),
        "seconds": round(time.monotonic() - began, 1),
        "interrupted": collection.interrupted,
        "faults": collection.faults,
        "bytes": sum(item.bytes for item in collection.items),
        "counts": collection.counts(),
    }
    words = [f"{summary['box']}, {summary['seconds']} s", *collection.report(), f"Written to {out}"]
    print(json.dumps(summary, indent=1) if given.json else "\n".join(words))
    return 130 if collection.interrupted else 0


def _progress(line: str) -> None:
    print("  " + line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from . import (
    access,
    amd_smi,
    commands,
    drm,
    environment,
    files,
    framework,
    kernel_log,
    kfd,
    machine,
    nvidia,
    pci,
    processes,
    rocm,
    rocminfo,
    ttm,
    watched,
)
from .archive import BundleError, can_write_zst, check_target
from .bundle import Bundle, BundleWriter
from .taking import Table, Taking, in_child, lost_status

# The one place that names the readers: what each of them needs is in its FILES and COMMANDS.
READERS: tuple[Any, ...] = (machine, pci, drm, kfd, ttm, framework, kernel_log, rocm, amd_smi, rocminfo,
                            nvidia)
KERNEL_LOG_LIMIT_BYTES = 20 << 20
NVML_LIMIT_S = 20.0
TORCH_LIMIT_S = 90.0
HANGS_LIMIT = 2
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
        return "" if self.root == "/" else "--root given: this process and its commands say nothing of that tree"

    @property
    def no_commands(self) -> str:
        return self.not_this_box or ("" if self.commands else "--no-commands given")


def capture(options: Options = Options()) -> Bundle:
    """This box, or the tree at ``options.root``, as a bundle in memory."""
    taking = measure(options)
    if taking.interrupted:
        raise KeyboardInterrupt
    return taking.writer.bundle()


def measure(options: Options, say: Callable[[str], None] = lambda line: None) -> Taking:
    """Take everything; each step's line goes to ``say``. Ctrl-C ends it early, with the rest named as not captured."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    taking = Taking(BundleWriter(options.box or box_name(options.root), "recorded" if options.not_this_box else "live",
                                 __version__, stamp))
    root = Path(options.root)
    own = options.not_this_box
    box = (Table("host", partial(in_child, partial(machine.collect_host, root))),
           Table("pci_devices", partial(in_child, partial(pci.collect_pci, root)), needs="/sys/bus/pci/devices"),
           Table("initramfs", partial(in_child, partial(ttm.collect_initramfs, root))),
           Table("libraries", partial(in_child, partial(environment.collect_libraries, root, options.commands))))
    held = (Table("processes", partial(processes.walk_processes, options.root, options.with_args), needs="/proc"),
            Table("device_files", partial(processes.walk_device_files, options.root), needs="/proc"))
    me = (Table("identity", partial(in_child, partial(access.collect_identity, root)), unless=own),
          Table("limits", partial(environment.collect_limits, root), unless=own),
          Table("environment", partial(environment.collect_environment, root), unless=own),
          Table("access", access.walk_access, unless=own))
    nvml = (Table("nvml", partial(nvidia.collect_nvml, NVML_LIMIT_S), unless=options.no_commands, answer=True),)
    no_torch = own or ("" if options.torch else "--no-torch given")
    torch = (Table("torch", partial(_torch, options), unless=no_torch, answer=True),)

    def tables(some: tuple[Table, ...]) -> None:
        for table in some:
            taking.table(table, options.root)

    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("kernel and driver files", partial(_files, taking, options)), ("this box", partial(tables, box)),
        ("processes", partial(tables, held)), ("access", partial(tables, me)),
        ("kernel log", partial(_kernel_log, taking, options)), ("vendor tools", partial(_commands, taking, options)),
        ("NVML", partial(tables, nvml)), ("torch", partial(tables, torch)))
    taking.plan("file", (table.name for table in box + held + me + nvml + torch))
    taking.plan("command", (" ".join(argv) for argv in _argvs()))
    try:
        for name, step in steps:
            before, began = len(taking.items), time.monotonic()
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a fault in one reader must not lose the evidence of the others
                taking.faults.append(f"{name}: {type(error).__name__}: {error}")
            say(f"{name}: {len(taking.items) - before} sources in {time.monotonic() - began:.1f} s")
        taking.rest("not captured: a fault in this program (" + "; ".join(taking.faults) + ")")
    except KeyboardInterrupt:
        taking.interrupted = True
        taking.rest("not captured: interrupted")
    return taking


def _files(taking: Taking, options: Options) -> None:
    found: dict[str, files.Found] = {}
    patterns = {pattern for reader in READERS for pattern in reader.FILES}
    for pattern in sorted(patterns.union(machine.cgroup_files(Path(options.root)))):
        for item in files.find(options.root, pattern):
            found.setdefault(item.source, item)
    there = [item.source for item in found.values() if item.status == "ok"]
    taking.plan("file", there)
    for item in found.values():
        if item.status != "ok":
            taking.add(item.source, None, item.status, item.why)
    began = time.monotonic()
    for source, got, why in watched.each(there, partial(files.read, options.root), group=os.path.dirname):
        content, status, why = got or (None, lost_status(why), why)
        taking.add(source, content, status, why, time.monotonic() - began)
        began = time.monotonic()


def _argvs() -> list[tuple[str, ...]]:
    return list(dict.fromkeys(argv for reader in READERS for argv in reader.COMMANDS))


def _commands(taking: Taking, options: Options) -> None:
    hangs: dict[str, int] = {}
    for argv in _argvs():
        source, unless = " ".join(argv), options.no_commands
        if not unless and hangs.get(argv[0]) == HANGS_LIMIT:
            unless = f"not run: {argv[0]} hung {HANGS_LIMIT} times before"
        if unless:
            taking.add(source, None, "not_available", unless, kind="command")
            continue
        got = commands.run(argv)
        hangs[argv[0]] = hangs.get(argv[0], 0) + (got.status == "timeout")
        never_ran = got.status in ("not_available", "not_allowed")
        taking.add(source, None if never_ran else got.text, got.status, got.why, got.seconds, got.exit, "command")


def _kernel_log(taking: Taking, options: Options) -> None:
    if options.no_commands:
        taking.add("dmesg", None, "not_available", options.no_commands, kind="command")
        return
    for source, content, status, why in kernel_log.collect(KERNEL_LOG_LIMIT_BYTES):
        taking.add(source, content, status, why, kind="file" if source.startswith("/") else "command")


def _torch(options: Options) -> list[dict[str, Any]]:
    """What the interpreter that owns torch says of it, in a child of its own."""
    python = (options.torch_python or _recorded_python() or shutil.which("python3", path=commands.search_path())
              or sys.executable)
    rows = framework.collect(python, TORCH_LIMIT_S, options.torch_devices)
    return [{**row, **{key: environment.without_names(str(row[key])) for key in ("python", "path") if row.get(key)}}
            for row in rows]


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
    known = known or (os.uname().nodename if root == "/" else os.path.realpath(root)).encode("utf-8", "surrogateescape")
    return "box-" + hashlib.sha256(known).hexdigest()[:6]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BundleError(f"{message}; expected: {self.format_usage()[len('usage: '):].strip()}")


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="capture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                     allow_abbrev=False)
    parser.add_argument("--out", metavar="PATH", help="a .tar.gz, a .tar.zst where zstd is at hand, or a folder "
                        "(default: outputs/captures/BOX-TIME.tar.gz in a checkout, else BOX-TIME.tar.gz here)")
    parser.add_argument("--root", metavar="DIR", default="/", help="look at a tree with proc, sys and etc instead of this box")
    parser.add_argument("--box", metavar="NAME", default="", help="name of the box (default: made from its machine id)")
    parser.add_argument("--with-args", action="store_true", help="keep the arguments of every process; they may hold secrets")
    parser.add_argument("--force", action="store_true", help="replace what is at --out")
    parser.add_argument("--no-commands", dest="commands", action="store_false", help="run no program but torch's interpreter")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="do not ask torch")
    parser.add_argument("--torch-devices", action="store_true",
                        help="also ask torch for its devices: takes a GPU context on each, in a child, for a moment")
    parser.add_argument("--torch-python", metavar="PATH", default="", help="the interpreter that has torch")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser.parse_args(argv)


def _checked(given: argparse.Namespace) -> tuple[Options, Path]:
    """Options and where to write; bad use is refused before anything is measured."""
    if not os.path.isdir(given.root) or not os.access(given.root, os.R_OK | os.X_OK):
        raise BundleError(f"--root {given.root}: no folder that can be listed; expected a tree with proc and sys in it")
    if given.torch_python and not shutil.which(given.torch_python):
        raise BundleError(f"--torch-python {given.torch_python}: no such program; expected the path of a Python interpreter")
    if given.box and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", given.box):
        raise BundleError(f"--box {given.box!r}: expected up to 64 letters, digits, dots and dashes")
    python = os.path.abspath(shutil.which(given.torch_python) or "") if given.torch_python else ""
    root = "/" if os.path.samefile(given.root, "/") else os.path.abspath(given.root)
    options = Options(root, given.with_args, given.commands, given.torch, given.torch_devices, python,
                      given.box)
    if given.out:
        out = Path(given.out)
    else:
        name = f"{options.box or box_name(options.root)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz"
        out = CHECKOUT / "outputs" / "captures" / name if (CHECKOUT / "pyproject.toml").is_file() else Path(name)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BundleError(f"{out.parent}: {error.strerror}; choose an --out that you may write to") from error
    if out.name.endswith((".zip", ".tar", ".tar.xz", ".tar.bz2", ".zst")) and not out.name.endswith(".tar.zst"):
        raise BundleError(f"--out {out}: expected a name that ends in .tar.gz or .tar.zst, or a folder")
    if out.name.endswith(".tar.zst") and not can_write_zst():
        raise BundleError(f"--out {out}: zstd is not at hand; choose a name that ends in .tar.gz, or install zstd")
    check_target(out, given.force)
    return options, out


def main(argv: list[str] | None = None) -> int:
    """The command: 0 written, 2 wrong use in one line, 130 interrupted (what was measured until then is written)."""
    try:
        given = _options(argv)
        options, out = _checked(given)
        began = time.monotonic()
        # `timeout 60 ... capture` and a stopped job are interruptions too: keep what there is.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            taking = measure(options, _progress if sys.stderr.isatty() else lambda line: None)
            taking.writer.write(out, given.force)
        finally:
            signal.signal(signal.SIGTERM, before)
    except BundleError as error:
        print("capture: " + str(error).replace("\n", " "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("capture: interrupted; nothing was written", file=sys.stderr)
        return 130
    manifest = taking.writer.manifest()
    summary = {**{key: manifest[key] for key in ("schema_version", "box", "kind", "captured_at", "tool_version")},
               "out": str(out), "seconds": round(time.monotonic() - began, 1), "interrupted": taking.interrupted,
               "faults": taking.faults, "bytes": sum(item.bytes for item in taking.items), "counts": taking.counts()}
    words = [f"{summary['box']}, {summary['seconds']} s", *taking.told(), f"Written to {out}"]
    print(json.dumps(summary, indent=1) if given.json else "\n".join(words))
    return 130 if taking.interrupted else 0


def _progress(line: str) -> None:
    print("  " + line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

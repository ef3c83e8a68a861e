"""What a rehearsal needs on this machine: a CUDA build of torch, and the device of device.c
built against it, in one folder.

torch's own libraries are read for symbol names only. An empty library for each vendor library
that they need, preloaded, is taken for the real one, whether that is installed or not;
device.c, libraries.c and generated stand-ins answer in its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ground.child import watch
from helpers.look import files
from helpers.trials.interpreter import torch_files, torch_interpreter

HERE = Path(__file__).resolve().parent
DEFAULT_TORCH = "2.14.1"
# Measured: torch 2.14.1 alone is 555 MB to download and 1.2 GB on disk, 2.6.0 alone 766 MB and
# 1.6 GB.
SIZE_WORDS = "0.6 to 0.8 GB to download, 1.2 to 1.6 GB on disk"
ROOM_BYTES = 4 << 30
PIP_S = 3600.0
TOOL_S = 300.0
NEEDS = "needs"
WORDS: dict[str, Any] = json.loads((HERE / "words.json").read_text(encoding="utf-8"))
_SHARED = ("-shared", "-fPIC")
# Whole numbers and addresses come in the same places however many there are (System V ABI, x86-64).
ARGUMENTS = ", ".join(f"unsigned long a{at}" for at in range(20))
_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
_SYMBOL = re.compile(
    r"_*cu[A-Z]|_*cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|cupti|nccl|nvrtc|nvtx|nvJitLink|nvml"
    r"|nvshmem"
)


class NotReady(ValueError):
    """Why nothing can be rehearsed yet, in one line: what is missing and what to do."""


@dataclass(frozen=True)
class Torch:
    """A CUDA build of torch: the folder that holds it, its version as it prints itself;
    ``own``: the user's, not downloaded.
    """

    folder: Path
    version: str
    own: bool


def cache(folder: str = "") -> Path:
    """Where everything is kept: ``folder``, else vram-casebook/rehearse in XDG_CACHE_HOME."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(folder).absolute() if folder else base / "vram-casebook" / "rehearse"


def remove(folder: Path) -> int:
    """Takes the folder away; the bytes that it held.

    Raises NotReady where it holds what no rehearsal put there.
    """
    there = list(folder.iterdir()) if folder.is_dir() else []
    if other := [path.name for path in there if not path.name.startswith(("torch-", "device-"))]:
        why = f"{other[0]} is not of a rehearsal; expected the folder given as --cache before"
        raise NotReady(f"{folder}: {why}")
    held = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    shutil.rmtree(folder, ignore_errors=True)
    return held


def tools() -> None:
    """Raises NotReady naming the first thing that this machine lacks."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotReady("a rehearsal preloads a library: expected Linux on x86_64")
    missing = next((tool for tool in ("gcc", "objdump", "nm") if not shutil.which(tool)), "")
    if missing:
        why = "install gcc and binutils (Debian: apt install gcc binutils), then again"
        raise NotReady(f"{missing} is missing; {why}")


def own_torch(python: str) -> tuple[Torch | None, str]:
    """The CUDA torch that ``python`` imports, if any, and its version of Python, such as cp311.

    Raises NotReady.
    """
    origin, tag = torch_files(python)
    if not tag:
        why = "it does not run; expected a Python; give one with --torch-python"
        raise NotReady(f"{python}: {why}")
    return read(Path(origin).parents[1], own=True) if origin.endswith("__init__.py") else None, tag


def interpreter(command: Sequence[str], python: str = "") -> str:
    """The Python whose torch a command uses: the one given, else the one that it names, else
    the one that owns torch.
    """
    first = python or "".join(command[:1])
    named = os.path.basename(first).startswith("python") and shutil.which(first)
    return first if named else torch_interpreter()


def read(folder: Path, own: bool = False) -> Torch | None:
    """The CUDA torch in a folder, or None where there is none or another build."""
    text = files.text("", f"{folder.absolute()}/torch/version.py")
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda[^=]*= '([^']+)'", text, re.MULTILINE)
    whole = (folder / "torch/lib/libtorch_cuda.so").exists()
    return Torch(folder, version[1], own) if version and cuda and whole else None


def find(python: str, version: str, folder: Path) -> tuple[Torch | None, Path]:
    """The torch to rehearse under, and where one would be put: the program's own CUDA torch
    where it is that version.
    """
    mine, tag = own_torch(python)
    place = folder / f"torch-{version or DEFAULT_TORCH}-{tag}"
    fits = mine and version in ("", mine.version.split("+")[0], mine.version)
    return (mine if fits else read(place)), place


def install(python: str, version: str, place: Path) -> Torch:
    """Puts torch alone into ``place``, and its pure-Python needs where only a Python that lacks
    them looks. Raises NotReady.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    version = version or DEFAULT_TORCH
    room = f"expected {ROOM_BYTES >> 20}"
    if (free := shutil.disk_usage(place.parent).free) < ROOM_BYTES:
        why = f"{free >> 20} MiB free; {room}; name another folder with --cache"
        raise NotReady(f"{place.parent}: {why}")
    flags = "install -q --no-deps --no-cache-dir --disable-pip-version-check"
    pip = [python, "-m", "pip", *flags.split()]
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="torch-") as made:
        wanted = {f"{made}/t": [f"torch==={version}"], f"{made}/t/{NEEDS}": WORDS["needs"]}
        for target, packages in wanted.items():
            ended = watch([*pip, "--target", target, *packages], PIP_S)
            if ended.exit_code != 0:
                lines = ended.last_words.splitlines()
                told = [line for line in lines if "ERROR" in line or "No module" in line]
                why = told[-1] if told else f"pip {ended.fate}"
                raise NotReady(f"pip did not install {packages[0]} for {python}: {why}")
        if (found := read(Path(made, "t"))) is None:
            why = "is no CUDA build; expected PyPI's own wheel; look at the index of pip"
            raise NotReady(f"the torch {version} that pip found {why}")
        os.rename(f"{made}/t", place)
    return Torch(place, found.version, own=False)


def _lines(*argv: str | Path) -> list[str]:
    """What a tool prints. Raises NotReady with its last line where it fails."""
    lines: list[str] = []
    ended = watch([str(word) for word in argv], TOOL_S, on_line=lines.append)
    if ended.exit_code != 0:
        raise NotReady(f"the device could not be built: {argv[0]} {ended.fate}: {ended.last_line}")
    return lines


def _names(path: Path, which: str) -> set[str]:
    return {line.split()[-1] for line in _lines("nm", "-D", which, path) if line.strip()}


def device(folder: Path) -> Path:
    """Builds device.c alone into ``folder``; the library. Raises NotReady."""
    made = folder / "libdevice.so"
    flags = ("-std=gnu11", "-fvisibility=hidden", "-O2", "-Wall", "-Wextra")
    name = "-Wl,-soname,libcuda.so.1"
    _lines("gcc", *_SHARED, *flags, name, "-o", made, HERE / "device.c", "-ldl")
    return made


def build(torch: Torch, folder: Path) -> list[Path]:
    """The libraries to preload for that torch, in order; built once, in a few seconds.

    Raises NotReady.
    """
    tools()
    libraries = sorted((torch.folder / "torch" / "lib").glob("*.so*"))
    sources = ("device.c", "libraries.c", "properties.def", "symbols.txt", "build.py", "words.json")
    content = [(HERE / name).read_bytes() for name in sources]
    content += [f"{path.name} {path.stat().st_size}".encode() for path in libraries]
    digest = hashlib.sha256(b"".join(content)).hexdigest()[:12]
    place = folder / f"device-{torch.version}-{digest}"
    if not (place / "preload").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="device-") as made:
            try:
                _build(libraries, Path(made))
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(made, place, symlinks=True)
            except OSError as error:
                raise NotReady(f"the device could not be built: {error}") from error
    return [place / name for name in (place / "preload").read_text().split()]


def _build(libraries: Sequence[Path], folder: Path) -> None:
    have = _names(device(folder), "--defined-only")
    (folder / "libcuda.so.1").symlink_to("libdevice.so")  # Triton looks for a file of that name
    needed: set[str] = {"libnvidia-ml.so.1"}  # torch opens this one by name
    symbols: dict[str, str] = {}
    for library in libraries:
        needed |= set(re.findall(r"NEEDED\s+(\S+)", "\n".join(_lines("objdump", "-p", library))))
        for entry in _names(library, "--undefined-only"):
            name, _, version = entry.partition("@")
            if _SYMBOL.match(name):
                symbols[name] = version.lstrip("@")
    needed -= {"libcuda.so.1", *(path.name for path in libraries)}
    wanted = sorted(name for name in needed if _LIBRARY.match(name))
    listed = (HERE / "symbols.txt").read_text(encoding="utf-8").splitlines()
    known = {name for line in listed if not line.startswith("#") for name in line.split()}
    head = ["#include <stdlib.h>", "void fake_missing(const char *);"]
    text = [*head, *map(_stand_in, sorted((known | set(symbols)) - have))]
    (folder / "vendor.c").write_text("\n".join(text) + "\n")
    beside = (f"-L{folder}", "-l:libdevice.so", "-Wl,-rpath,$ORIGIN")
    vendor = ("-Wl,-soname,libvendor.so", "-o", folder / "libvendor.so", folder / "vendor.c")
    _lines("gcc", "-O1", "-fno-builtin", "-w", *_SHARED, *vendor, *beside)
    for name in wanted:
        empty = (f"-Wl,-soname,{name}", "-o", folder / name, "-x", "c", "/dev/null")
        argv: list[str | Path] = ["gcc", *_SHARED, *empty, "-Wl,--no-as-needed", *beside]
        argv.append("-l:libvendor.so")
        if name in symbols.values():  # the version that torch asks for, else the loader warns
            (folder / "version.map").write_text(f"{name} {{ }};\n")
            argv.append(f"-Wl,--version-script={folder / 'version.map'}")
        _lines(*argv)
    (folder / "preload").write_text("\n".join(["libdevice.so", "libvendor.so", *wanted]) + "\n")


def _stand_in(name: str) -> str:
    """A function nobody wrote by hand: it notes that it was called, and answers what WORDS has
    for that library.
    """
    if name.endswith(("GetErrorString", "GetErrorName", "GetLastError", "GetStatusString")):
        return f'const char *{name}(void) {{ return "not part of a rehearsal"; }}'
    answers = WORDS["answers"].items()
    code = next((answer for start, answer in answers if name.startswith(start)), 1)
    rows = [row for row in WORDS["outputs"] if re.fullmatch(row[0], name)][:1]
    writes = [f"if (a{at}) *({kind} *)a{at} = {value};" for _, kind, to, value in rows for at in to]
    call = f'static int s; if (!s) fake_missing("{name}"); s = 1; {" ".join(writes)}'
    return f"int {name}({ARGUMENTS}) {{ {call} return {code}; }}"

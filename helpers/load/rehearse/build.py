"""What a rehearsal needs on this machine: a CUDA build of torch, and the device of device.c built against it, in one folder.

torch's own libraries are read for symbol names only. An empty library for each vendor library that they need, preloaded, is
taken for the real one, whether that is installed or not; device.c, libraries.c and generated stand-ins answer in its place.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.load.box import torch_files

HERE = Path(__file__).resolve().parent
DEFAULT_TORCH = "2.14.1"
# Measured: torch 2.14.1 alone is 555 MB to download and 1.2 GB on disk, 2.6.0 alone 766 MB and 1.6 GB.
SIZE_WORDS = "0.6 to 0.8 GB to download, 1.2 to 1.6 GB on disk"
ROOM_BYTES = 4 << 30
NEEDS = "needs"
NEEDED = (
    "typing_extensions",
    "filelock",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
)
_FLAGS = ("-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden")
_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
_SYMBOL = re.compile(
    r"_*cu[A-Z]|_*cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|cupti|nccl|nvrtc|nvtx|nvJitLink|nvml"
    r"|nvshmem"
)
# What a function nobody wrote by hand answers: 0 success, else "not supported" in the words of that library.
_ANSWER = (
    ("cublas", 0),
    ("cudnn", 0),
    ("cupti", 27),
    ("cufft", 16),
    ("cusparse", 10),
    ("cusolver", 9),
    ("nccl", 3),
    ("nvrtc", 1),
    ("nvshmem", 1),
    ("cuda", 801),
    ("__cuda", 801),
    ("cu", 801),
)


class NotReady(RuntimeError):
    """Why nothing can be rehearsed yet, in one line: what is missing and what to do."""


@dataclass(frozen=True)
class Torch:
    """A CUDA build of torch: the folder that holds it, its version as it prints itself; ``own``: the user's, not downloaded."""

    folder: Path
    version: str
    own: bool


def cache(folder: str = "") -> Path:
    """Where everything is kept: ``folder``, else vram-casebook/rehearse in XDG_CACHE_HOME."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(folder).absolute() if folder else base / "vram-casebook" / "rehearse"


def remove(folder: Path) -> int:
    """Takes the folder away; the bytes that it held. Raises NotReady where it holds what no rehearsal put there."""
    there = list(folder.iterdir()) if folder.is_dir() else []
    if other := [path.name for path in there if not path.name.startswith(("torch-", "device-"))]:
        raise NotReady(
            f"{folder}: {other[0]} is not of a rehearsal; expected the folder given as --cache before"
        )
    held = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    shutil.rmtree(folder, ignore_errors=True)
    return held


def tools() -> None:
    """Raises NotReady naming the first thing that this machine lacks."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotReady("a rehearsal preloads a library: expected Linux on x86_64")
    for tool in ("gcc", "objdump", "nm"):
        if not shutil.which(tool):
            raise NotReady(
                f"{tool} is missing; install gcc and binutils (Debian: apt install gcc binutils), then again"
            )


def own_torch(python: str) -> tuple[Torch | None, str]:
    """The CUDA torch that ``python`` imports, if any, and its version of Python, such as cp311. Raises NotReady."""
    origin, tag = torch_files(python)
    if not tag:
        raise NotReady(
            f"{python}: it does not run; expected a Python; give one with --torch-python"
        )
    return read(Path(origin).parents[1], own=True) if origin.endswith("__init__.py") else None, tag


def read(folder: Path, own: bool = False) -> Torch | None:
    """The CUDA torch in a folder, or None where there is none or another build."""
    try:
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda[^=]*= '([^']+)'", text, re.MULTILINE)
    return (
        Torch(folder, version[1], own)
        if version and cuda and (folder / "torch/lib/libtorch_cuda.so").exists()
        else None
    )


def find(python: str, version: str, folder: Path) -> tuple[Torch | None, Path]:
    """The torch to rehearse under, and where one would be put: the program's own CUDA torch where it is that version."""
    mine, tag = own_torch(python)
    place = folder / f"torch-{version or DEFAULT_TORCH}-{tag}"
    return (
        mine if mine and version in ("", mine.version.split("+")[0], mine.version) else read(place)
    ), place


def install(python: str, version: str, place: Path) -> Torch:
    """Puts torch alone into ``place``, and its pure-Python needs where only a Python that lacks them looks. Raises NotReady."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(place.parent).free) < ROOM_BYTES:
        raise NotReady(
            f"{place.parent}: {free >> 20} MiB free; expected {ROOM_BYTES >> 20}; name another folder with --cache"
        )
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--target",
    ]
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="torch-") as made:
        for target, wanted in (
            (f"{made}/t", (f"torch==={version or DEFAULT_TORCH}",)),
            (f"{made}/t/{NEEDS}", NEEDED),
        ):
            done = subprocess.run(
                [*pip, target, *wanted], capture_output=True, text=True, check=False
            )
            if done.returncode:
                words = [
                    line
                    for line in done.stderr.splitlines()
                    if "ERROR" in line or "No module" in line
                ] or ["no reason"]
                raise NotReady(f"pip did not install {wanted[0]} for {python}: {words[-1]}")
        if read(Path(made, "t")) is None:
            raise NotReady(
                f"the torch {version or DEFAULT_TORCH} that pip found is no CUDA build; expected PyPI's own wheel; "
                "look at the index that pip is set to"
            )
        os.rename(f"{made}/t", place)
    found = read(place)
    assert found is not None, "it was there a moment ago"
    return found


def _output(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def _names(path: Path, which: str) -> set[str]:
    return {
        line.split()[-1] for line in _output("nm", "-D", which, path).splitlines() if line.strip()
    }


def device(folder: Path, soname: str = "libcuda.so.1") -> Path:
    """Builds device.c alone into ``folder``; the library."""
    made = folder / "libdevice.so"
    _output(
        "gcc",
        *_FLAGS,
        "-O2",
        "-Wall",
        "-Wextra",
        f"-Wl,-soname,{soname}",
        "-o",
        made,
        HERE / "device.c",
        "-ldl",
    )
    return made


def build(torch: Torch, folder: Path) -> list[Path]:
    """The libraries to preload for that torch, in order; built once, in about 2 s. Raises NotReady."""
    tools()
    libraries = sorted((torch.folder / "torch" / "lib").glob("*.so*"))
    said = [(HERE / name).read_bytes() for name in ("device.c", "libraries.c", "build.py")]
    said += [f"{path.name} {path.stat().st_size}".encode() for path in libraries]
    place = folder / f"device-{torch.version}-{hashlib.sha256(b''.join(said)).hexdigest()[:12]}"
    if not (place / "preload").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="device-") as made:
            try:
                _build(libraries, Path(made))
            except (OSError, subprocess.SubprocessError) as error:
                words = getattr(error, "stderr", "") or str(error)
                raise NotReady(
                    f"the device could not be built: {words.strip().splitlines()[-1]}"
                ) from error
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(made, place)
    return [place / name for name in (place / "preload").read_text().split()]


def _build(libraries: Sequence[Path], folder: Path) -> None:
    have = _names(device(folder), "--defined-only")
    needed: set[str] = {"libnvidia-ml.so.1"}  # torch opens this one by name
    symbols: dict[str, str] = {}
    for library in libraries:
        needed |= set(re.findall(r"NEEDED\s+(\S+)", _output("objdump", "-p", library)))
        for entry in _names(library, "--undefined-only"):
            name, _, version = entry.partition("@")
            if _SYMBOL.match(name):
                symbols[name] = version.lstrip("@")
    needed -= {"libcuda.so.1", *(path.name for path in libraries)}
    wanted = sorted(name for name in needed if _LIBRARY.match(name))
    text = ["void fake_missing(const char *);"]
    for name in sorted(set(symbols) - have):
        if name.endswith(("GetErrorString", "GetResultString", "GetLastError")):
            text.append(f'const char *{name}(void) {{ return "not part of a rehearsal"; }}')
        else:
            code = next((answer for start, answer in _ANSWER if name.startswith(start)), 1)
            text.append(
                f'int {name}(void) {{ static int s; if (!s) fake_missing("{name}"); s = 1; return {code}; }}'
            )
    (folder / "vendor.c").write_text("\n".join(text) + "\n")
    _output(
        "gcc",
        "-O1",
        "-shared",
        "-fPIC",
        "-fno-builtin",
        "-w",
        "-Wl,-soname,libvendor.so",
        "-o",
        folder / "libvendor.so",
        folder / "vendor.c",
        f"-L{folder}",
        "-l:libdevice.so",
        "-Wl,-rpath,$ORIGIN",
    )
    for name in wanted:
        argv: list[str | Path] = [
            "gcc",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{name}",
            "-o",
            folder / name,
            "-x",
            "c",
            "/dev/null",
            "-Wl,--no-as-needed",
            f"-L{folder}",
            "-l:libdevice.so",
            "-l:libvendor.so",
            "-Wl,-rpath,$ORIGIN",
        ]
        if name in symbols.values():  # the version that torch asks for, else the loader warns
            (folder / "version.map").write_text(f"{name} {{ }};\n")
            argv.append(f"-Wl,--version-script={folder / 'version.map'}")
        _output(*argv)
    (folder / "preload").write_text("\n".join(["libdevice.so", "libvendor.so", *wanted]) + "\n")

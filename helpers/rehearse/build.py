"""Builds the simulated card for a torch: the libraries that a rehearsal preloads.

torch's own libraries are read for symbol names only. For each vendor library that they need an
empty one of its name is preloaded, which the loader takes for the real one, whether that is
installed or not. device.c, libraries.c and generated stand-ins answer in its place.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from helpers.ground.child import watch
from helpers.ground.places import PROGRAM
from helpers.rehearse.torches import SIZE_WORDS, NotReady, Torch, find_torch
from helpers.rehearse.words import HERE, WORDS

TOOL_S = 300.0
"""How long gcc, nm and objdump may take each: far more than the seconds that they need."""
SOURCES = (
    "device.c",
    "libraries.c",
    "properties.def",
    "symbols.txt",
    "build.py",
    "words.json",
)
"""The files that decide what is built: where one changes, the libraries are built again."""
SHARED = ("-shared", "-fPIC")
ARGUMENTS = ", ".join(f"unsigned long a{number}" for number in range(20))
"""Parameters of a stand-in. Whole numbers and addresses come in the same places however many a
caller gives (System V ABI, x86-64); 20 are more than any function of "outputs" in words.json has.
"""
VENDOR_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
"""Names of NVIDIA's libraries: libcudart, libcublas, libnvrtc, libnccl and the like."""
VENDOR_SYMBOL = re.compile(
    r"_*cu[A-Z]|_*cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|cupti|nccl|nvrtc|nvtx|nvJitLink|nvml"
    r"|nvshmem"
)
"""Names of the functions in them: the driver's begin with cu, the runtime's with cuda."""
TEXT_OF_ERROR = ("GetErrorString", "GetErrorName", "GetLastError", "GetStatusString")
"""Ends of the names of functions that return a text and no code."""


def tools() -> None:
    """Raises NotReady naming the first thing that this machine lacks."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotReady("a rehearsal preloads a library: expected Linux on x86_64")
    for tool in ("gcc", "objdump", "nm"):
        if not shutil.which(tool):
            why = "install gcc and binutils (Debian: apt install gcc binutils), then again"
            raise NotReady(f"{tool} is missing; {why}")


def ready_torch(python: str, release: str, cache: Path) -> Torch:
    """The torch to rehearse under, where nothing is left to be installed. Raises NotReady."""
    tools()
    torch, _ = find_torch(python, release, cache)
    if torch is None:
        why = f"{python} has no CUDA build of torch, which a rehearsal needs"
        raise NotReady(f"{why}; run: {PROGRAM} rehearse --setup ({SIZE_WORDS})")
    return torch


def build(torch: Torch, folder: Path) -> list[Path]:
    """The libraries to preload for that torch, in order; built once, in a few seconds.

    Raises NotReady.
    """
    tools()
    libraries = sorted((torch.folder / "torch" / "lib").glob("*.so*"))
    content = [(HERE / name).read_bytes() for name in SOURCES]
    content += [f"{path.name} {path.stat().st_size}".encode() for path in libraries]
    digest = hashlib.sha256(b"".join(content)).hexdigest()[:12]  # enough for a name
    place = folder / f"device-{torch.version}-{digest}"
    names = place / "preload"  # written last, so what is beside it is whole
    if not names.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="device-") as scratch:
            try:
                _build_all(libraries, Path(scratch))
                # What an interrupted copy left, which lacks the list of names.
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(scratch, place, symlinks=True)
            except OSError as error:
                raise NotReady(f"the device could not be built: {error}") from error
    return [place / name for name in names.read_text().split()]


def device(folder: Path) -> Path:
    """Build device.c alone into ``folder``. Returns the library; raises NotReady."""
    library = folder / "libdevice.so"
    flags = ("-std=gnu11", "-fvisibility=hidden", "-O2", "-Wall", "-Wextra")
    soname = "-Wl,-soname,libcuda.so.1"
    _lines("gcc", *SHARED, *flags, soname, "-o", library, HERE / "device.c", "-ldl")
    return library


def _build_all(libraries: Sequence[Path], folder: Path) -> None:
    """Build every library to preload into ``folder``, and the list of their names."""
    answered = _symbols(device(folder), "--defined-only")
    # Triton looks for the driver as a file of this name.
    (folder / "libcuda.so.1").symlink_to("libdevice.so")
    versions = _vendor_symbols(libraries)
    _build_stand_ins(sorted((_listed_symbols() | set(versions)) - answered), folder)
    names = _vendor_libraries(libraries)
    for name in names:
        _build_empty(name, folder, versioned=name in versions.values())
    preload = "\n".join(["libdevice.so", "libvendor.so", *names])
    (folder / "preload").write_text(f"{preload}\n")


def _vendor_symbols(libraries: Sequence[Path]) -> dict[str, str]:
    """The vendor's functions that torch's libraries call, each with the version of the symbol that
    they ask for (nm: name@version), empty where they ask for none.
    """
    versions = {}
    for library in libraries:
        for entry in _symbols(library, "--undefined-only"):
            name, _, version = entry.partition("@")
            if VENDOR_SYMBOL.match(name):
                versions[name] = version.lstrip("@")
    return versions


def _vendor_libraries(libraries: Sequence[Path]) -> list[str]:
    """The names of the vendor's libraries that torch's own libraries need, sorted. The driver's,
    libcuda.so.1, is not among them: device.c is built as that one.
    """
    needed = {"libnvidia-ml.so.1"}  # torch opens this one by name
    for library in libraries:
        headers = "\n".join(_lines("objdump", "-p", library))
        needed.update(re.findall(r"NEEDED\s+(\S+)", headers))
    needed -= {"libcuda.so.1", *(path.name for path in libraries)}
    return sorted(name for name in needed if VENDOR_LIBRARY.match(name))


def _listed_symbols() -> set[str]:
    """The functions of symbols.txt, which programs ask for beside those of torch."""
    lines = (HERE / "symbols.txt").read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if not line.startswith("#")]
    return set(" ".join(names).split())


def _build_stand_ins(names: Sequence[str], folder: Path) -> None:
    """Build libvendor.so: a generated function for each name."""
    text = ["#include <stdlib.h>", "void fake_missing(const char *);"]
    text += map(_stand_in, names)
    source = folder / "vendor.c"
    source.write_text("\n".join(text) + "\n")
    flags = ("-O1", "-fno-builtin", "-w", *SHARED, "-Wl,-soname,libvendor.so")
    _lines("gcc", *flags, "-o", folder / "libvendor.so", source, *_beside(folder))


def _build_empty(name: str, folder: Path, versioned: bool) -> None:
    """Build a library of that name without a function. It needs libvendor.so, so that the loader
    also loads the stand-ins. ``versioned``: torch asks for symbols with the library's name as
    version.
    """
    argv = [*SHARED, f"-Wl,-soname,{name}", "-o", f"{folder / name}"]
    argv += ["-x", "c", "/dev/null", "-Wl,--no-as-needed", *_beside(folder)]
    argv.append("-l:libvendor.so")
    if versioned:
        # The version that torch asks for, else the loader warns.
        versions = folder / "version.map"
        versions.write_text(f"{name} {{ }};\n")
        argv.append(f"-Wl,--version-script={versions}")
    _lines("gcc", *argv)


def _beside(folder: Path) -> tuple[str, ...]:
    """The linker's words for the device's library in the same folder."""
    return (f"-L{folder}", "-l:libdevice.so", "-Wl,-rpath,$ORIGIN")


def _stand_in(name: str) -> str:
    """A generated function in C: it notes that it was called, writes what "outputs" in words.json
    has for it, and returns what "answers" has for its library.
    """
    # These return a pointer to text: a code in its place would be read as an address.
    if name.endswith(TEXT_OF_ERROR):
        return f'const char *{name}(void) {{ return "not part of a rehearsal"; }}'
    code = 1  # a failure in the codes of all these libraries
    for start, answer in WORDS["answers"].items():
        if name.startswith(start):
            code = answer
            break
    writes = []
    for pattern, kind, arguments, value in WORDS["outputs"]:
        if re.fullmatch(pattern, name):
            for at in arguments:
                writes.append(f"if (a{at}) *({kind} *)a{at} = {value};")
            break
    notes = f'static int noted; if (!noted) fake_missing("{name}"); noted = 1;'
    body = " ".join([notes, *writes, f"return {code};"])
    return f"int {name}({ARGUMENTS}) {{ {body} }}"


def _symbols(path: Path, which: str) -> set[str]:
    """The symbols of a library, each with its version; ``which``: an option of nm."""
    lines = _lines("nm", "-D", which, path)
    return {line.split()[-1] for line in lines if line.strip()}


def _lines(*argv: str | Path) -> list[str]:
    """What a tool prints. Raises NotReady with its last line where it fails."""
    lines: list[str] = []
    ended = watch([str(word) for word in argv], TOOL_S, on_line=lines.append)
    if ended.exit_code != 0:
        failure = f"{argv[0]} {ended.fate}: {ended.last_line}"
        raise NotReady(f"the device could not be built: {failure}")
    return lines

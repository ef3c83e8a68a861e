"""What the real allocator needs to run here: a torch wheel alone in a folder, the fakes, and stand-ins for vendor libraries.

``pip install --no-deps`` leaves out cuBLAS, cuDNN and the rest. An empty library for each of them, and one library with an
aborting function for every symbol they should have defined, let such a torch be imported; the allocator calls none of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
_VENDOR_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
_VENDOR_SYMBOL = re.compile(
    r"_*cu[A-Z]|_*cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|cupti|nccl|nvrtc|nvtx|nvJitLink|nvml"
    r"|nvshmem"
)
_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden")


class NotRun(RuntimeError):
    """Why the oracle cannot run here, in one line."""


def tools() -> None:
    """Raises NotRun naming the first thing that this machine lacks."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NotRun("the fakes are for Linux on x86_64")
    for tool in ("gcc", "objdump", "nm"):
        if not shutil.which(tool):
            raise NotRun(f"{tool} is missing (Debian: apt install gcc binutils)")


def _output(*argv: str | Path) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout


def fakes(folder: Path) -> list[Path]:
    """Builds the fake driver and the fake NVML. Their sonames make a later dlopen of the real names find them."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for source, soname in (("fake_cuda.c", "libcuda.so.1"), ("fake_nvml.c", "libnvidia-ml.so.1")):
        made.append(folder / f"lib{source[:-2]}.so")
        _output("gcc", *_FLAGS, f"-Wl,-soname,{soname}", "-o", made[-1], HERE / source, "-lpthread")
    return made


def install(torch: str, folder: Path, python: str) -> None:
    """Puts a torch into ``folder`` (0.6 to 0.9 GB of download, 2 GB on disk). Raises NotRun with pip's last words."""
    if (folder / "torch" / "version.py").exists():
        return
    done = subprocess.run(
        [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--target",
            str(folder),
            f"torch==={torch}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise NotRun(
            f"pip did not install torch {torch} for {python}: {words[-1] if words else 'it said nothing'}"
        )


def stubs(target: Path, folder: Path) -> Path:
    """Makes the stand-ins for a wheel in ``target``, from its own libraries' symbol names; the library to preload last."""
    libraries = sorted((target / "torch" / "lib").glob("*.so*"))
    needed: set[str] = set()
    symbols: set[str] = set()
    for library in libraries:
        needed |= set(re.findall(r"NEEDED\s+(\S+)", _output("objdump", "-p", library)))
        names = (
            line.split()[-1].split("@")[0]
            for line in _output("nm", "-D", "--undefined-only", library).splitlines()
        )
        symbols |= {name for name in names if _VENDOR_SYMBOL.match(name)}
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(needed - {library.name for library in libraries}):
        if _VENDOR_LIBRARY.match(name):
            _output(
                "gcc",
                "-shared",
                "-fPIC",
                f"-Wl,-soname,{name}",
                "-o",
                folder / name,
                "-x",
                "c",
                "/dev/null",
            )
    source, made = folder / "symbols.c", folder / "libsymbols.so"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        + "".join(
            f'void {name}(void) {{ fprintf(stderr, "{name}: called, but only its name is here\\n"); abort(); }}\n'
            for name in sorted(symbols)
        )
    )
    _output("gcc", "-shared", "-fPIC", "-fno-builtin", "-w", "-o", made, source)
    return made


def environment(target: Path, preload: Sequence[Path]) -> dict[str, str]:
    """The environment of a Python whose ``import torch`` is the one in ``target``, on the fake device."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FAKE_", "PYTORCH_"))
    }
    return kept | {
        "PYTHONPATH": str(target),
        "LD_PRELOAD": " ".join(map(str, preload)),
        "LD_LIBRARY_PATH": str(preload[-1].parent),
        "TORCH_CPP_LOG_LEVEL": "FATAL",
        "PYTHONWARNINGS": "ignore",
    }

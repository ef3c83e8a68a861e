"""A ROCm build of torch's caching allocator, made here without ROCm: c10/cuda of a release, turned into HIP by torch's own hipify,
compiled by g++ against that release's libc10 and HIP's headers, over the stand-in device of a rehearsal under HIP's names.

Fetched are torch's source and libamdhip64-dev, unpacked and not installed, through this machine's apt from its mirror of Debian,
and the release's wheel, through pip. Nothing is kept of them but the three libraries that run.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from helpers.child import watch
from helpers.load.rehearse.build import HERE as DEVICE
from tests.oracle import build
from tests.oracle.build import NotRun
from tests.oracle.run import Oracle

HIP = Path(__file__).resolve().parent / "hip"
DEFAULT = "2.6.0"
SUITES = {"2.6": ("trixie", "sid")}
NEWER = ("sid", "experimental")
"""Debian's suites with the source of a release and with HIP's headers for it: 6.4, from torch 2.12 on 7.2, as expandable segments
need ROCm 7.0."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"
WANTED = re.compile(r"torch/(include/|utils/hipify/|lib/libc10\.so$)")
ERRORS = re.compile(r"^E: |ERROR|error: (?!ld )|undefined reference|fatal: ")
ROOM_BYTES = 3 << 30
LIMIT_S = 3600.0
HIPIFY = """
import sys
at, wheel = sys.argv[1:]
sys.path.insert(0, wheel)
from torch.utils.hipify.hipify_python import hipify
hipify(at, output_directory=at, includes=[at + "/c10/cuda/*"], show_progress=False, hip_clang_launch=True)
"""


def run(*argv: str | Path, **how: Any) -> list[str]:
    """What a program prints. Raises NotRun with the first error that it names."""
    lines: list[str] = []
    ended = watch([str(word) for word in argv], LIMIT_S, on_line=lines.append, **how)
    if ended.exit_code != 0:
        told = [line for line in ended.last_words.splitlines() if ERRORS.search(line)]
        why = (told or [ended.last_line])[0].strip()[:300]
        raise NotRun(f"{Path(argv[0]).name} {ended.fate}: {why}")
    return lines


def tools(source: str, headers: str) -> None:
    """Raises NotRun naming the first thing that this machine lacks."""
    build.tools()
    wanted = ["g++"] + ([] if source and headers else ["apt-get", "apt-cache", "dpkg-deb"])
    missing = next((tool for tool in wanted if not shutil.which(tool)), "")
    if missing == "g++":
        raise NotRun("g++ is missing; expected GCC 12 or newer (Debian: apt install g++)")
    if missing:
        raise NotRun(f"{missing} is missing, expected Debian's tools; give SOURCE= and HEADERS=")


class Debian:
    """Packages of one suite, by this machine's apt, with lists and cache of its own in ``folder``. Raises NotRun, which says to
    ``give`` that instead."""

    def __init__(self, suite: str, folder: Path, give: str) -> None:
        self.suite, self.folder, self.give = suite, folder, give
        form = ("$(REPO_URI) $(RELEASE)", "Created-By: Packages", "Origin: Debian")
        found = [line.split() for line in run("apt-get", "indextargets", "--format", *form)]
        mirror = next((uri for uri, *suites in found if "-" not in suites[0]), "")
        if not mirror:
            raise NotRun(f"no mirror of Debian in apt's sources, expected one; give {give}=")
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        (folder / "lists/partial").mkdir(parents=True)
        (folder / "cache/archives/partial").mkdir(parents=True)
        lists = [f"{kind} {signed}{mirror} {suite} main\n" for kind in ("deb", "deb-src")]
        (folder / "sources.list").write_text("".join(lists))
        told = f"Dir::Etc::sourcelist={folder}/sources.list Dir::Etc::sourceparts=- Dir::State::lists={folder}/lists"
        told += f" Dir::Cache={folder}/cache Acquire::Languages=none APT::Update::Error-Mode=any Acquire::Retries=1"
        told += " Acquire::http::Timeout=30 Debug::NoLocking=1 APT::Sandbox::User=root"
        self.options = [word for one in told.split() for word in ("-o", one)]
        self.ask("apt-get", "update")

    def ask(self, program: str, *words: str) -> list[str]:
        try:
            return run(program, *self.options, *words, cwd=self.folder)
        except NotRun as error:
            raise NotRun(f"Debian {self.suite}, {words[0]}: {error}; give {self.give}=") from error

    def source(self, torch: str) -> Path:
        lines = self.ask("apt-cache", "showsrc", "--only-source", "pytorch")
        there = [line.split()[1] for line in lines if line.startswith("Version:")]
        version = next((one for one in there if re.match(rf"{re.escape(torch)}[^\d.]", one)), "")
        if not version:
            seen = f"pytorch {', '.join(there) or 'not'} seen, expected {torch}"
            raise NotRun(f"Debian {self.suite}: {seen}; give {self.give}=")
        self.ask("apt-get", "source", "--download-only", "--tar-only", f"pytorch={version}")
        return next(self.folder.glob("pytorch_*.orig.tar.*"))

    def headers(self) -> Path:
        self.ask("apt-get", "download", "libamdhip64-dev")
        run("dpkg-deb", "-x", next(self.folder.glob("libamdhip64-dev_*.deb")), self.folder / "hip")
        return self.folder / "hip/usr/include"


def unpack(source: str | Path, torch: str, at: Path) -> None:
    """c10/cuda of a folder, of an archive of either form, or of CLONE@TAG, put into ``at``. Raises NotRun for another release."""
    clone, tagged, tag = str(source).rpartition("@")
    if tagged and Path(clone).is_dir() and not Path(source).exists():
        source = at / "clone.tar"
        what = ("--prefix=t/", tag, "c10/cuda", "version.txt")
        try:
            run("git", "-C", clone, "archive", "-o", source, *what)
        except NotRun as error:
            raise NotRun(f"SOURCE={clone}@{tag}: {error}; expected a tag of torch's") from error
    if Path(source, ALLOCATOR).is_file():
        shutil.copytree(Path(source, "c10/cuda"), at / "c10/cuda")
        shutil.copy(Path(source, "version.txt"), at)
    elif Path(source).is_file() and tarfile.is_tarfile(source):
        with tarfile.open(source) as tar:
            for member in tar:
                name = member.name.partition("/")[2]
                if member.isfile() and re.match(r"version\.txt$|c10/cuda(/\w[\w.]*)+$", name):
                    (at / name).parent.mkdir(parents=True, exist_ok=True)
                    (at / name).write_bytes(tar.extractfile(member).read())
    if not (at / ALLOCATOR).is_file():
        forms = "a folder, an archive or CLONE@TAG with the source of torch"
        raise NotRun(f"SOURCE={source}: no {ALLOCATOR} seen; expected {forms} {torch}")
    seen = (at / "version.txt").read_text().strip()
    if seen.split(".")[:2] != torch.split(".")[:2]:  # a patch release keeps its first one's number
        instead = f"give RELEASE={seen.split('a')[0]}, or another SOURCE="
        raise NotRun(f"SOURCE={source}: torch {seen} seen, expected {torch}; {instead}")


def hip_version(headers: Path) -> tuple[int, int]:
    """Of HIP's headers. Raises NotRun where there are none."""
    file = headers / "hip/hip_version.h"
    text = file.read_text() if file.is_file() else ""
    found = re.findall(r"HIP_VERSION_M(?:AJOR|INOR)\s+(\d+)$", text, re.MULTILINE)
    if len(found) != 2:
        expected = "expected a folder with hip/hip_version.h, such as /opt/rocm/include"
        raise NotRun(f"HEADERS={headers}: no headers of HIP seen; {expected}")
    return int(found[0]), int(found[1])


def wheel(torch: str, python: str, at: Path) -> Path:
    """The wheel of a release; libc10.so, headers and hipify are unpacked beside it. Raises NotRun."""
    pip = "-m pip download -q --no-deps --no-cache-dir --disable-pip-version-check --only-binary=:all:"
    which = ("--python-version=3.11", f"torch==={torch}")  # any: no Python imports it
    try:
        run(python, *pip.split(), *which, "-d", at)
    except NotRun as error:
        instead = "look at the release and at the network"
        raise NotRun(f"no wheel of torch {torch} by {error}; {instead}") from error
    file = next(at.glob("torch-*.whl"))
    with zipfile.ZipFile(file) as packed:
        packed.extractall(at, [name for name in packed.namelist() if WANTED.match(name)])
    return file


def compiled(at: Path, of_wheel: Path, headers: Path, place: Path) -> None:
    """Turns at/c10/cuda into HIP and compiles it into ``place``. Raises NotRun."""
    macros = at / "c10/cuda/impl/cuda_cmake_macros.h"
    macros.write_text(Path(f"{macros}.in").read_text().replace("#cmakedefine", "#define"))
    shutil.copy(HIP / "allocator.cpp", at / "c10/cuda")
    run(sys.executable, "-I", "-S", "-c", HIPIFY, at, of_wheel)
    libc10 = Path(shutil.copy(of_wheel / "torch/lib/libc10.so", place))
    new_strings = b"ErrorC1ENS_14SourceLocationENSt7__cxx11" in libc10.read_bytes()
    major, minor = hip_version(headers)
    flags = "-std=gnu++20 -O1 -fPIC -w -DUSE_ROCM=1 -D__HIP_PLATFORM_AMD__=1"
    flags += " -DC10_CUDA_BUILD_MAIN_LIB=1 -DC10_HIP_BUILD_MAIN_LIB=1"
    flags += f" -D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}"
    flags += (
        f" -DROCM_VERSION={major * 10000 + minor * 100} -DTORCH_HIP_VERSION={major * 100 + minor}"
    )
    gcc = [*flags.split(), f"-I{at}", f"-I{of_wheel}/torch/include", f"-I{headers}"]
    shared = device(place)
    sources = [path for path in (at / "c10/hip").rglob("*.cpp") if not path.stem.endswith("Test")]
    sources.sort(key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(2) as two:
        list(two.map(lambda path: run("g++", *gcc, "-c", path, "-o", f"{path}.o"), sources))
    objects = [f"{path}.o" for path in sources]
    linked = ("-Wl,-z,defs", "-Wl,-rpath,$ORIGIN", "-o", place / "libc10_hip.so")
    run("g++", "-shared", *objects, shared, libc10, *linked)


def device(place: Path) -> Path:
    """The stand-in device under HIP's names. Raises NotRun."""
    made = place / "libamdhip64.so.6"
    flags = "-std=gnu11 -shared -fPIC -fvisibility=hidden -O2 -Wall -Wextra".split()
    name = f"-Wl,-soname,{made.name}"
    run("gcc", *flags, name, f"-I{DEVICE}", "-o", made, HIP / "hip.c", "-ldl")
    return made


def make(torch: str, work: Path, python: str, source: str, headers: str) -> Path:
    """Fetches and builds below ``work``; the folder to keep. Raises NotRun."""
    began, most_bytes, number = time.monotonic(), 0, 0

    def step(words: str) -> None:
        nonlocal most_bytes, number
        most_bytes = max(most_bytes, sum(p.lstat().st_blocks * 512 for p in work.rglob("*")))
        number += 1
        print(f"torch {torch} for ROCm, {number} of 4: {words}", flush=True)

    at, place, fetched = work / "source", work / "made", work / "fetched"
    for folder in (at, place, fetched):
        folder.mkdir()
    suites = SUITES.get(".".join(torch.split(".")[:2]), NEWER)
    step(f"source from {source or f'Debian {suites[0]} (about 60 MB)'}")
    unpack(source or Debian(suites[0], fetched / "source", "SOURCE").source(torch), torch, at)
    step(f"HIP's headers from {headers or f'Debian {suites[1]} (about 25 MB)'}")
    include = (
        Path(headers) if headers else Debian(suites[1], fetched / "headers", "HEADERS").headers()
    )
    version = "{}+rocm{}.{}".format(torch, *hip_version(include))
    step("libc10 and hipify from PyPI's wheel (0.5 to 0.9 GB)")
    whole = wheel(torch, python, fetched)
    step("hipify, and g++ over some ten files (a minute on two cores)")
    whole.unlink()
    compiled(at, fetched, include.absolute(), place)
    shutil.copy(HIP / "torch_of_rocm.py", place / "torch.py")
    (place / "include/c10/cuda").mkdir(parents=True)
    shutil.copy((at / ALLOCATOR).with_suffix(".h"), place / "include/c10/cuda")
    (place / "version").write_text(version)
    took = f"{time.monotonic() - began:.0f} s, {most_bytes / 1e9:.1f} GB of disk at most"
    print(f"torch {version}: built in {took}", flush=True)
    return place


def prepare(torch: str, folder: Path, python: str, source: str = "", headers: str = "") -> Oracle:
    """Makes folder/rocm-VERSION, unless it is there. Raises NotRun, and leaves nothing half made then."""
    place = folder / f"rocm-{torch}"
    if not place.exists():
        tools(source, headers)
        if headers:
            hip_version(Path(headers))
        if (free := shutil.disk_usage(folder).free) < ROOM_BYTES:
            why = f"{free >> 20} MiB free, expected {ROOM_BYTES >> 20}"
            raise NotRun(f"{folder}: {why}; name another with --folder")
        with tempfile.TemporaryDirectory(dir=folder, prefix="rocm-") as work:
            os.rename(make(torch, Path(work), python, source, headers), place)
    libraries = [place / "libamdhip64.so.6"]
    built = (place / "version").read_text().partition("+")[2]
    return Oracle(torch, python, build.environment(place, libraries), built)

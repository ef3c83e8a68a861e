"""A ROCm build of torch's caching allocator, run without ROCm over the stand-in device of a rehearsal under HIP's names.

Of the releases in SHIPPED it is Ubuntu's own build: its libc10_hip, as it was compiled for its packages, on the C library that
it was compiled for. Of all others, and with ``SOURCE=``, it is made here: c10/cuda of the release, turned into HIP by torch's
own hipify, compiled by g++ against that release's libc10 and HIP's headers. Packages come through this machine's apt from the
archives of Debian and Ubuntu, unpacked and not installed, a wheel through pip; nothing is kept of them but what runs.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helpers.rehearse.words import HERE as DEVICE
from tests.oracle import build
from tests.oracle.archive import Archive, run
from tests.oracle.build import NotRun
from tests.oracle.run import Oracle

HIP = Path(__file__).resolve().parent / "hip"
DEFAULT = "2.6.0"
SUITES = {"2.6": ("trixie", "sid")}
NEWER = ("sid", "experimental")
"""Debian's suites with the source of a release and with HIP's headers for it: 6.4, from torch 2.12 on 7.2, as expandable segments
need ROCm 7.0."""
SHIPPED = {"2.9": "resolute", "2.12": "tenacious"}
"""Ubuntu's suites with a ROCm build of a release: libtorch-rocm-2.9 (26.04, HIP 7.1), libtorch-rocm-2.12 (26.10, ROCm 10.0)."""
RUNS_ON = ("libc6", "libstdc++6", "libgcc-s1", "libnuma1", "libcpuinfo0")
MATTERS = r"/libc10[^/]*\.so\.[\d.]+$|/include/(c10|torch/headeronly)/|/torch/utils/hipify/|/dist-packages/torch/version\.py$"
LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"
WANTED = re.compile(r"torch/(include/|utils/hipify/|lib/libc10\.so$)")
ROOM_BYTES = 3 << 30
DRIVEN = "liballocator.so"
FLAGS = "-std=gnu++20 -O1 -fPIC -w -DUSE_ROCM=1 -D__HIP_PLATFORM_AMD__=1".split()
HIPIFY = """
import sys
at, wheel = sys.argv[1:]
sys.path.insert(0, wheel)
from torch.utils.hipify.hipify_python import hipify
hipify(at, output_directory=at, includes=[at + "/c10/cuda/*"], show_progress=False, hip_clang_launch=True)
"""


def tools(source: str, headers: str) -> None:
    """Raises NotRun naming the first thing that this machine lacks."""
    build.tools()
    wanted = ["g++"] + ([] if source and headers else ["apt-get", "apt-cache", "dpkg-deb"])
    missing = next((tool for tool in wanted if not shutil.which(tool)), "")
    if missing == "g++":
        raise NotRun("g++ is missing; expected GCC 12 or newer (Debian: apt install g++)")
    if missing:
        raise NotRun(f"{missing} is missing, expected Debian's tools; give SOURCE= and HEADERS=")


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


def hipified(at: Path, library: Path) -> None:
    """Turns at/c10/cuda into at/c10/hip by the hipify below ``library``. Raises NotRun."""
    shutil.copy(HIP / "allocator.cpp", at / "c10/cuda")
    run(sys.executable, "-I", "-S", "-c", HIPIFY, at, library)


def compiled(at: Path, of_wheel: Path, headers: Path, place: Path) -> None:
    """Turns at/c10/cuda into HIP and compiles it into ``place``. Raises NotRun."""
    macros = at / "c10/cuda/impl/cuda_cmake_macros.h"
    macros.write_text(Path(f"{macros}.in").read_text().replace("#cmakedefine", "#define"))
    hipified(at, of_wheel)
    libc10 = Path(shutil.copy(of_wheel / "torch/lib/libc10.so", place))
    new_strings = b"ErrorC1ENS_14SourceLocationENSt7__cxx11" in libc10.read_bytes()
    major, minor = hip_version(headers)
    flags = [*FLAGS, "-DC10_CUDA_BUILD_MAIN_LIB=1", "-DC10_HIP_BUILD_MAIN_LIB=1"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}"]
    flags += [f"-DROCM_VERSION={major * 10000 + minor * 100}"]
    flags += [f"-DTORCH_HIP_VERSION={major * 100 + minor}"]
    gcc = [*flags, f"-I{at}", f"-I{of_wheel}/torch/include", f"-I{headers}"]
    shared = device(place)
    sources = [path for path in (at / "c10/hip").rglob("*.cpp") if not path.stem.endswith("Test")]
    sources.sort(key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(2) as two:
        list(two.map(lambda path: run("g++", *gcc, "-c", path, "-o", f"{path}.o"), sources))
    objects = [f"{path}.o" for path in sources]
    linked = ("-Wl,-z,defs", "-Wl,-rpath,$ORIGIN", "-o", place / DRIVEN)
    run("g++", "-shared", *objects, shared, libc10, *linked)


def named(library: Path, what: str) -> list[str]:
    """What a library calls itself (SONAME), or the others that it needs (NEEDED). Raises NotRun."""
    told = [line.split() for line in run("objdump", "-p", library)]
    return [words[1] for words in told if words[:1] == [what]]


def device(place: Path, name: str = "libamdhip64.so.6") -> Path:
    """The stand-in device under HIP's names. Raises NotRun."""
    made = place / name
    flags = "-std=gnu11 -shared -fPIC -fvisibility=hidden -O2 -Wall -Wextra".split()
    soname = f"-Wl,-soname,{name}"
    run("gcc", *flags, soname, f"-I{DEVICE}", "-o", made, HIP / "hip.c", "-ldl")
    return made


def make(torch: str, work: Path, python: str, source: str, headers: str) -> Path:
    """Fetches and builds below ``work``; the folder to keep. Raises NotRun."""
    began = time.monotonic()
    most_bytes = 0
    number = 0
    at = work / "source"
    place = work / "made"
    fetched = work / "fetched"
    shipped = not source and minor(torch) in SHIPPED

    def step(words: str) -> None:
        nonlocal most_bytes, number
        most_bytes = max(most_bytes, sum(p.lstat().st_blocks * 512 for p in work.rglob("*")))
        number += 1
        print(f"torch {torch} for ROCm, {number} of {3 if shipped else 4}: {words}", flush=True)

    for folder in (at, place, fetched):
        folder.mkdir()
    if shipped:
        version = packaged(torch, at, place, fetched, headers, step)
    else:
        version = from_source(torch, at, place, fetched, python, source, headers, step)
    shutil.copy(HIP / "torch_of_rocm.py", place / "torch.py")
    (place / "include/c10/cuda").mkdir(parents=True)
    shutil.copy((at / ALLOCATOR).with_suffix(".h"), place / "include/c10/cuda")
    (place / "version").write_text(version)
    took = f"{time.monotonic() - began:.0f} s, {most_bytes / 1e9:.1f} GB of disk at most"
    print(f"torch {version}: built in {took}", flush=True)
    return place


def minor(torch: str) -> str:
    return ".".join(torch.split(".")[:2])


def from_source(
    torch: str,
    at: Path,
    place: Path,
    fetched: Path,
    python: str,
    source: str,
    headers: str,
    step: Callable[[str], None],
) -> str:
    """Compiles a release's allocator into ``place``; its version. Raises NotRun."""
    suites = SUITES.get(minor(torch), NEWER)
    step(f"source from {source or f'Debian {suites[0]} (about 60 MB)'}")
    if not source:
        source = str(Archive("Debian", suites[0], fetched / "source", "SOURCE").source(torch))
    unpack(source, torch, at)
    step(f"HIP's headers from {headers or f'Debian {suites[1]} (about 25 MB)'}")
    if not headers:
        debian = Archive("Debian", suites[1], fetched / "headers", "HEADERS")
        headers = str(debian.unpacked("libamdhip64-dev") / "usr/include")
    step("libc10 and hipify from PyPI's wheel (0.5 to 0.9 GB)")
    whole = wheel(torch, python, fetched)
    step("hipify, and g++ over some ten files (a minute on two cores)")
    whole.unlink()
    include = Path(headers).absolute()
    compiled(at, fetched, include, place)
    return "{}+rocm{}.{}".format(torch, *hip_version(include))


def packaged(
    torch: str, at: Path, place: Path, fetched: Path, headers: str, step: Callable[[str], None]
) -> str:
    """Puts Ubuntu's build of a release, a driver for it and what it runs on into ``place``; its version. Raises NotRun."""
    suite = SHIPPED[minor(torch)]
    package = f"libtorch-rocm-{minor(torch)}"
    step(f"torch's ROCm build from Ubuntu {suite} (about 0.4 GB)")
    ubuntu = Archive("Ubuntu", suite, fetched / "ubuntu", "SOURCE", "main universe")
    seen = re.split(r"[+-]", ubuntu.version(package))[0]
    if seen != torch:
        instead = f"give RELEASE={seen} or SOURCE=" if seen else "give SOURCE="
        why = f"{package} {seen or 'not'} seen, expected {torch}"
        raise NotRun(f"{ubuntu.name}: {why}; {instead}")
    root = ubuntu.unpacked(package, "libtorch-rocm-dev", "python3-torch-rocm", only=MATTERS)
    step("HIP's headers, and the C library that it runs on (about 10 MB)")
    ubuntu.unpacked(*RUNS_ON, *([] if headers else ["libamdhip64-dev"]))
    step("hipify and g++ over what drives it (seconds)")
    (place / "lib").mkdir()
    files = [file for file in (root / LIBRARIES).iterdir() if ".so" in file.suffixes]
    for file in (file for file in files if file.is_file() and not file.is_symlink()):
        for name in named(file, "SONAME"):
            shutil.copy(file, place / "lib" / name)
    hip = place / "lib" / f"libc10_hip.so.{minor(torch)}"
    needed = [name for name in named(hip, "NEEDED") if name.startswith("libamdhip64.")]
    python = root / "usr/lib/python3/dist-packages"
    include = root / "usr/include"
    (at / "c10").mkdir()
    shutil.copytree(include / "c10/cuda", at / "c10/cuda")
    hipified(at, python)
    linked = (hip, place / "lib" / f"libc10.so.{minor(torch)}", device(place, *needed))
    linked += ("-Wl,--allow-shlib-undefined", "-o", place / DRIVEN)
    including = (f"-I{include}", f"-I{headers or include}")
    run("g++", *FLAGS, "-shared", *including, at / "c10/hip/allocator.cpp", *linked)
    version = (python / "torch/version.py").read_text()
    told = dict(re.findall(r"^(rocm|hip)\b.*= '(\d+\.\d+)", version, re.MULTILINE))
    return f"{torch}+rocm{told.get('rocm') or told['hip']}"


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
    env = build.environment(place, list(place.glob("libamdhip64.so.*")))
    built = (place / "version").read_text().partition("+")[2]
    loader = place / "lib/ld-linux-x86-64.so.2"
    own = f"{place}/lib:{place}"
    under = (str(loader), "--library-path", own) if loader.exists() else ()
    return Oracle(torch, python, env, built, under)

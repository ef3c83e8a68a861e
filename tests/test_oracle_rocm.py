"""The oracle's ROCm build: what it is asked for and cannot do is said in one line; its device answers under HIP's names."""

import json
import os
import shutil
import subprocess
import sys
import tarfile

import pytest

from tests.oracle import archive, compare, rocm
from tests.oracle.__main__ import main
from tests.oracle.run import Oracle

TOOLS = ("gcc", "g++", "objdump", "nm")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)), reason="gcc, g++ or binutils are not installed"
)
ASKS_NOBODY = "#!/bin/sh\necho 'E: Failed to fetch trixie/InRelease' >&2\nexit 100\n"
HAS_A_MIRROR = "#!/bin/sh\n[ $1 = indextargets ] && echo http://localhost/debian/ stable && exit\n"


def source(at, version):
    """A tree of torch that says its release."""
    (at / "c10/cuda").mkdir(parents=True)
    (at / "c10/cuda/CUDACachingAllocator.cpp").write_text("")
    (at / "version.txt").write_text(f"{version}\n")
    return at


def headers(at):
    (at / "hip").mkdir(parents=True)
    text = "#define HIP_VERSION_MAJOR 6\n#define HIP_VERSION_MINOR 4\n#define HIP_VERSION_PATCH 43484\n"
    (at / "hip/hip_version.h").write_text(text)
    return at


def programs(at, **more):
    """A PATH with the compiler's tools alone, and ``more`` by name and text."""
    at.mkdir()
    for name in TOOLS:
        (at / name).symlink_to(shutil.which(name))
    for name, text in more.items():
        (at / name.replace("_", "-")).write_text(text)
        (at / name.replace("_", "-")).chmod(0o755)
    return str(at)


@pytest.fixture
def refusal(tmp_path, capsys):
    """The line with which a ROCm build of 2.6.0 is refused; nothing may be left of the attempt."""

    def asked(*words):
        folder = tmp_path / "work"
        folder.mkdir()
        given = ["--build", "rocm", "--folder", folder, *words]
        assert main([str(word) for word in given]) == 2
        assert list(folder.iterdir()) == []
        return capsys.readouterr().out.splitlines()[-1].split("not run because ")[1]

    return asked


def test_a_missing_compiler_is_named(refusal, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    (tmp_path / "bin/g++").unlink()
    seen = refusal()
    assert seen == "g++ is missing; expected GCC 12 or newer (Debian: apt install g++)"


def test_without_debians_tools_source_and_headers_are_asked_for(refusal, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    seen = "apt-get is missing, expected Debian's tools; give SOURCE= and HEADERS="
    assert refusal("--source", source(tmp_path / "s", "2.6.0a0")) == seen


@pytest.mark.parametrize(
    ("apt", "seen"),
    [
        (HAS_A_MIRROR + ASKS_NOBODY[10:], "Debian trixie, update: apt-get ended with code 100: "),
        ("#!/bin/sh\n", "no mirror of Debian in apt's sources, expected one; "),
    ],
)
def test_without_a_network_a_source_is_asked_for(refusal, tmp_path, monkeypatch, apt, seen):
    tools = programs(tmp_path / "bin", apt_get=apt, apt_cache=apt, dpkg_deb=apt)
    monkeypatch.setenv("PATH", f"{tools}:/bin")
    told = refusal()
    assert told.startswith(seen) and told.endswith("; give SOURCE=")


SHIPS = """#!/bin/sh
for word in "$@"; do case $word in
indextargets | update) exit ;;
madison) echo "libtorch-rocm-2.12 | 2.12.1+dfsg-0ubuntu2 | http://localhost/ubuntu" ;;
esac; done
"""


@pytest.mark.parametrize(
    ("apt", "release", "seen"),
    [
        (
            HAS_A_MIRROR + ASKS_NOBODY[10:],
            "2.12.1",
            "Ubuntu tenacious, update: apt-get ended with code 100: "
            "E: Failed to fetch trixie/InRelease; give SOURCE=",
        ),
        (
            SHIPS,
            "2.12.0",
            "Ubuntu tenacious: libtorch-rocm-2.12 2.12.1 seen, expected 2.12.0; "
            "give RELEASE=2.12.1 or SOURCE=",
        ),
        (
            SHIPS.replace("echo", ": "),
            "2.9.1",
            "Ubuntu resolute: libtorch-rocm-2.9 not seen, expected 2.9.1; give SOURCE=",
        ),
    ],
    ids=["no-network", "another-release", "none"],
)
def test_a_build_that_a_distribution_does_not_ship_is_named(
    refusal, tmp_path, monkeypatch, apt, release, seen
):
    monkeypatch.setattr(archive, "KEYRINGS", tmp_path)
    (tmp_path / "ubuntu-archive-keyring.gpg").touch()
    tools = programs(tmp_path / "bin", apt_get=apt, apt_cache=apt, dpkg_deb=apt)
    monkeypatch.setenv("PATH", f"{tools}:/bin")
    assert refusal("--release", release) == seen


def test_a_folder_without_headers_is_named(refusal, tmp_path):
    given = ("--source", source(tmp_path / "s", "2.6.0a0"), "--headers", tmp_path)
    expected = "expected a folder with hip/hip_version.h, such as /opt/rocm/include"
    assert refusal(*given) == f"HEADERS={tmp_path}: no headers of HIP seen; {expected}"


def test_a_source_of_another_release_is_named(refusal, tmp_path):
    given = source(tmp_path / "s", "2.12.0a0")
    seen = refusal("--source", given, "--headers", headers(tmp_path / "h"))
    instead = "give RELEASE=2.12.0, or another SOURCE="
    assert seen == f"SOURCE={given}: torch 2.12.0a0 seen, expected 2.6.0; {instead}"


def test_an_archive_of_another_release_is_named(refusal, tmp_path):
    file = tmp_path / "pytorch.tar.xz"
    with tarfile.open(file, "w:xz") as tar:
        tar.add(source(tmp_path / "s", "2.14.1a0"), "pytorch-v2.14.1")
    seen = refusal("--source", file, "--headers", headers(tmp_path / "h"))
    assert ": torch 2.14.1a0 seen, expected 2.6.0; give RELEASE=2.14.1, " in seen


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_a_clone_is_read_at_its_tag(refusal, tmp_path):
    clone = source(tmp_path / "clone", "2.12.0a0")
    who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["tag", "v2.12.0"]):
        subprocess.run(["git", "-C", clone, *who, *words], check=True)
    (clone / "version.txt").write_text("2.6.0a0\n")  # what is checked out does not count
    given = ("--headers", headers(tmp_path / "h"), "--source")
    assert ": torch 2.12.0a0 seen, expected 2.6.0; " in refusal(*given, f"{clone}@v2.12.0")
    (tmp_path / "work").rmdir()
    seen = refusal(*given, f"{clone}@v2.6.0")
    assert seen.startswith(f"SOURCE={clone}@v2.6.0: git ended with code 128: fatal: ")
    assert seen.endswith("; expected a tag of torch's")


@pytest.mark.parametrize("given", ["nothing", "nothing@v2.6.0", "."])
def test_what_is_no_source_is_named(refusal, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    seen = refusal("--source", given, "--headers", headers(tmp_path / "h"))
    forms = "expected a folder, an archive or CLONE@TAG with the source of torch 2.6.0"
    assert seen == f"SOURCE={given}: no c10/cuda/CUDACachingAllocator.cpp seen; {forms}"


def test_a_wheel_that_cannot_be_had_is_named(refusal, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found' >&2\nexit 1\n")
    python.chmod(0o755)
    given = ("--source", source(tmp_path / "s", "2.6.0a0"), "--headers", headers(tmp_path / "h"))
    why = "python ended with code 1: ERROR: No matching distribution found"
    instead = "look at the release and at the network"
    assert refusal(*given, "--python", python) == f"no wheel of torch 2.6.0 by {why}; {instead}"


def test_the_device_answers_under_hips_names(tmp_path):
    library = rocm.device(tmp_path)
    code = """
import ctypes, sys
hip, whole = ctypes.CDLL(sys.argv[1]), ctypes.c_uint64
at, free, total, record = whole(), whole(), whole(), (ctypes.c_char * 1472)()
codes = [hip.hipMalloc(ctypes.byref(at), whole(size << 20)) for size in (3, 6)]
hip.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
hip.hipGetDevicePropertiesR0600(record, 0)
words = ctypes.c_char_p()
hip.hipDrvGetErrorString(2, ctypes.byref(words))
reserved = hip.hipMemAddressReserve(ctypes.byref(at), whole(8 << 20), whole(0), None, whole(0))
made = hip.hipMemCreate(ctypes.byref(at), whole(4 << 20), None, whole(0))
hip.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
print(codes, reserved, made, free.value >> 20, total.value >> 20, int.from_bytes(record[288:296], "little") >> 20, words.value)
"""
    env = {**os.environ, "FAKE_VRAM_BYTES": str(8 << 20)}
    argv = [sys.executable, "-c", code, str(library)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[0, 2] 0 0 0 8 8 b'out of memory'\n"


def test_the_other_backend_is_refused_by_name(tmp_path):
    (tmp_path / "include/c10/cuda").mkdir(parents=True)
    (tmp_path / "include/c10/cuda/CUDACachingAllocator.h").write_text("")
    (tmp_path / "version").write_text("2.6.0+rocm6.4")
    shutil.copy(rocm.HIP / "torch_of_rocm.py", tmp_path / "torch.py")
    driver = ["gcc", "-shared", "-o", tmp_path / rocm.DRIVEN, "-x", "c", "-"]
    subprocess.run(driver, input="const char *words(void) { return 0; }", text=True, check=True)
    env = rocm.build.environment(tmp_path, [rocm.device(tmp_path)])
    job = {"name": "a", "conf": "backend:hipMallocAsync", "vram": 64 << 20}
    ops = [{"op": "alloc", "id": 1, "size": 512}]
    made = Oracle("2.6.0", sys.executable, env, "rocm6.4").results([(job, ops)], tmp_path / "w")
    real = [json.loads(line) for line in made[0].read_text().splitlines()]
    refused = "RuntimeError: backend:hipMallocAsync is not the caching allocator; not compared here"
    assert real[0]["torch"] == "2.6.0+rocm6.4" and real[1:] == [{"config_error": refused}]
    assert compare.first_difference(real, compare.model(job, ops, "2.6.0", build="rocm6.4")) == ""

"""Which torch is used: found without being imported, never changed, and no pip call that could pick a build by itself."""

import ast
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bare_checkout import NO_ENSUREPIP, ROOT, lay, needs_pip, ran, torch_wheel
from hypothesis import given, settings
from hypothesis import strategies as st
from setup import interpreters, pip, torch_build, verbs

from helpers.ground.child import process_of

BASE = os.path.realpath(sys.executable)
MINOR = f"python3.{sys.version_info[1]}"

ROCM = (
    "__version__ = '2.9.1+rocm6.4'\ndebug = False\ncuda: Optional[str] = None\ngit_version = 'd1'\n"
    "hip: Optional[str] = '6.4.43484-123eb5128'\n"
)
CUDA = '__version__ = "2.13.0+cu130"\ncuda: str | None = "13.0"\nhip: str | None = None\n'
OLD = "__version__ = '1.13.1+cu117'\ndebug = False\ncuda = '11.7'\ngit_version = '49'\nhip = None\n"
NVIDIA = (
    "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.10.0a0+b4e4ee8'\n"
    "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
)


@pytest.fixture
def bare(tmp_path):
    return lay(tmp_path)


def owner(folder, version=ROCM, python=sys.executable):
    """An environment of the user's with a torch that must not be imported. Returns its Python."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    torch = next(folder.glob("lib/python3.*/site-packages")) / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise SystemExit('imported')\n")
    (torch / "version.py").write_text(version)
    return folder / "bin/python"


def content(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        line = f"{path.relative_to(folder)} {about.st_mtime_ns} {about.st_mode}"
        digest.update(line.encode())
    return digest.hexdigest()


# --- looking


@pytest.mark.parametrize(
    ("text", "torch", "cuda", "hip"),
    [
        (ROCM, "2.9.1+rocm6.4", None, "6.4.43484-123eb5128"),
        (CUDA, "2.13.0+cu130", "13.0", None),
        (OLD, "1.13.1+cu117", "11.7", None),
        (NVIDIA, "2.10.0a0+b4e4ee8", "13.0", None),
        ("__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\n", "2.13.0+cpu", None, None),
        ("", None, None, None),
        ("__version__ = ''\ncuda = ''", None, None, None),
        ("version = 'x'\ncudart = '3'", None, None, None),
    ],
)
def test_version_text_is_read_as_torch_writes_it(text, torch, cuda, hip):
    names = ("__version__", "cuda", "hip")
    assert [interpreters.stated(text, name) for name in names] == [torch, cuda, hip]


def test_a_torch_is_found_without_being_imported(tmp_path):
    one = interpreters.probe(str(owner(tmp_path / "v")), "here", {})
    assert (one.torch, one.hip) == ("2.9.1+rocm6.4", "6.4.43484-123eb5128")
    assert (one.cuda, one.usable, one.why) == (None, True, "")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\nexit 3\n", "exit 3: nothing printed"),
        ("#!/bin/sh\necho 'no libpython3.so' >&2\nexit 127\n", "exit 127: no libpython3.so"),
        ("#!/bin/sh\necho hello\n", "exit 0: nothing printed"),
        ("#!/nonexistent/interpreter\n", "does not start: No such file or directory"),
        ("\x7fELF nonsense", "does not start: Exec format error"),
    ],
)
def test_a_broken_interpreter_is_listed_with_the_reason(tmp_path, script, why):
    path = tmp_path / "python3"
    path.write_text(script)
    path.chmod(0o755)
    one = interpreters.probe(str(path), "here", {"PATH": "/usr/bin:/bin"})
    assert not one.usable and one.why == why


def test_an_interpreter_that_hangs_costs_its_limit_and_leaves_no_child(tmp_path):
    path = tmp_path / "python3"
    path.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    path.chmod(0o755)
    one = interpreters.probe(str(path), "here", {"PATH": "/usr/bin:/bin"}, limit_s=0.5)
    assert one.why == "did not answer within 0.5 s"
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not process_of(child).running:
            return
        time.sleep(0.05)
    pytest.fail("its child lives on")


@pytest.mark.parametrize(
    ("python", "version", "why"),
    [
        ("3.8.18", ROCM, "too old"),
        ("3.10.1", "__version__ = '1.12.0'\nhip = '5.2'\n", "too old"),
        ("3.9.1", OLD, ""),
        ("3.12.1", "__version__ = '2.13.0+cpu'\ncuda = None\n", interpreters.CPU_BUILD),
        ("3.12.1", "", "names no version"),
    ],
)
def test_what_speaks_against_a_torch_is_said(python, version, why):
    said = {"python": python, "prefix": "/p", "at": "/p/torch", "text": version}
    said |= {"why": None, "user": None}
    one = interpreters.judged("/p/bin/python", "here", said, {})
    assert (why in one.why) if why else one.usable


def test_all_are_listed_in_order_each_once(tmp_path):
    names = ("active", "system/opt/venv", "system/opt/conda/envs/py_3.10")
    active, opt, conda = (owner(tmp_path / name) for name in names)
    broken = tmp_path / "system/opt/conda/envs/broken/bin/python"
    broken.parent.mkdir(parents=True)
    broken.symlink_to("/nonexistent")
    (tmp_path / "path").mkdir()
    (tmp_path / "path/python3").write_text(f'#!/bin/sh\nexec "{active}" "$@"\n')
    (tmp_path / "path/python3").chmod(0o755)
    environ = {"PATH": str(tmp_path / "path"), "HOME": str(tmp_path)}
    environ["VIRTUAL_ENV"] = str(tmp_path / "active")
    found = interpreters.find(environ, tmp_path / ".venv", system=tmp_path / "system")
    assert [(one.path, one.how_found) for one in found][1:] == [
        (str(active), "active, VIRTUAL_ENV"),
        (str(opt), "/opt/venv"),
        (str(broken), "/opt/conda/envs/broken"),
        (str(conda), "/opt/conda/envs/py_3.10"),
    ]
    assert found[0].path == sys.executable
    chosen = torch_build.chosen([one for one in found if one.path != sys.executable], None)
    assert chosen and chosen.path == str(active)


def test_the_workbooks_own_venv_is_no_candidate(tmp_path):
    own = owner(tmp_path / ".venv")
    environ = {"PATH": str(own.parent), "HOME": str(tmp_path)}
    environ["VIRTUAL_ENV"] = str(tmp_path / ".venv")
    found = interpreters.find(environ, tmp_path / ".venv", system=tmp_path)
    assert [one.path for one in found] == [sys.executable]


def test_a_torch_of_the_user_site_is_found_and_started_so_that_it_stays_found(tmp_path):
    site = tmp_path / f".local/lib/{MINOR}/site-packages/torch"
    site.mkdir(parents=True)
    (site / "version.py").write_text(ROCM)
    (site / "__init__.py").write_text("version = 'theirs'\n")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / MINOR).symlink_to(BASE)
    environ = {"PATH": str(tmp_path / "path"), "HOME": str(tmp_path)}
    found = interpreters.find(environ, tmp_path / ".venv", system=tmp_path)
    one = next(one for one in found if one.usable)
    assert (one.path, one.how_found) == (str(tmp_path / "path" / MINOR), "~/.local")
    assert one.through == "user site"
    assert starts(tmp_path, one, environ) == "theirs"


def test_a_torch_of_pythonpath_is_found_and_started_so_that_it_stays_found(tmp_path):
    theirs = tmp_path / "their builds"
    (theirs / "torch").mkdir(parents=True)
    (theirs / "torch/version.py").write_text(CUDA)
    (theirs / "torch/__init__.py").write_text("version = 'theirs'\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environ["PYTHONPATH"] = f"/nonexistent:{theirs}"
    one = interpreters.find(environ, tmp_path / ".venv", system=tmp_path)[0]
    assert one.usable and one.through == "PYTHONPATH"
    assert starts(tmp_path, one, environ) == "theirs"


def starts(folder, one, environ):
    """The torch that a child of the workbook gets through the starter, with the checkout first on its path."""
    (folder / "checkout").mkdir()
    (folder / "checkout/helpers.py").write_text("here = 'checkout'\n")
    script = folder / "torch-python"
    script.write_text(interpreters.starter(one, environ))
    script.chmod(0o755)
    env = {name: environ[name] for name in ("HOME", "PATH")}
    env |= {"PYTHONNOUSERSITE": "1", "PYTHONPATH": str(folder / "checkout")}
    ask = "import helpers, torch; print(torch.version)"
    return ran([script, "-c", ask], env=env, check=True).stdout.strip()


# --- choosing and installing


def asked_for_torch(checkout):
    """The pip calls of a set-up that name torch, or the lock of what it needs."""
    calls = [line for line in checkout.log.splitlines() if line.startswith("$ pip")]
    return [line for line in calls if "torch" in line.split("/")[-1]]


@needs_pip
def test_the_users_torch_is_used_recorded_and_not_touched(bare, tmp_path):
    theirs = owner(tmp_path / "theirs")
    before = content(tmp_path / "theirs")
    done = bare.start("diagnose", VIRTUAL_ENV=str(tmp_path / "theirs"), PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    record = bare.record
    used = (record["torch_python"], record["torch"], record["hip"])
    assert used == (str(theirs), "2.9.1+rocm6.4", "6.4.43484-123eb5128")
    assert record["how_found"] == "active, VIRTUAL_ENV" and len(record["all"]) >= 2
    assert content(tmp_path / "theirs") == before
    assert "torch==" not in bare.log and "torch.txt" not in bare.log
    assert not list(bare.venv.glob("lib/*/site-packages/torch"))
    assert f"torch 2.9.1+rocm6.4 of {theirs}" in done.stderr
    (tmp_path / "theirs/bin/python").unlink()
    again = bare.start("diagnose")
    # An owner that is gone is looked for anew.
    assert "torch 9.9.9+cpu" in again.stderr and bare.record["torch"] == "9.9.9+cpu"


@needs_pip
def test_a_recorded_box_brings_no_torch_and_this_box_does(bare):
    shutil.copytree(ROOT / "notebooks", bare.root / "notebooks")
    assert bare.start("diagnose", "--box", "cpu-only").returncode == 0
    assert not asked_for_torch(bare) and bare.record["torch_python"] is None
    assert bare.start("diagnose").returncode == 0 and bare.record["torch"] == "9.9.9+cpu"


@pytest.mark.parametrize(
    ("words", "torch"),
    [
        ("diagnose", True),
        ("diagnose --box=live", True),
        ("diagnose --box some.tar.gz", False),
        ("overnight looks.yaml", False),
        ("overnight live.yaml", True),
        ("overnight live.yaml --box cpu-only", False),
        ("overnight loads.yaml", True),
        ("overnight nosuch.yaml", True),
        ("overnight foreign.yaml", True),
        ("bench", True),
    ],
)
def test_torch_is_wanted_where_a_notebook_of_the_plan_works_or_looks_at_this_box(
    words, torch, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "looks": "- notebook: 01_hardware_probe.ipynb  # not live\n  grid: {box: [cpu-only]}",
        "live": "- {notebook: 03_ttm_gtt_analysis.ipynb, box: live}",
        "loads": "- notebook: 05_fix_validation.ipynb\n  box: cpu-only",
        "foreign": "- notebook: ../mine.ipynb",
    }.items():
        Path(f"{name}.yaml").write_text(f"runs:\n{text}\n")
    verb, *rest = words.split()
    assert ("torch" in verbs.needed(ROOT, verb, None, rest)) is torch


@needs_pip
def test_torch_python_picks_and_is_kept(bare, tmp_path):
    theirs = owner(tmp_path / "their own", "__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\n")
    assert bare.start("diagnose", "--torch", "none").returncode == 0
    nothing = (None, "--torch none was asked for")
    assert (bare.record["torch_python"], bare.record["why"]) == nothing
    log = bare.log
    done = bare.start("diagnose", "--torch-python", str(theirs))
    assert done.returncode == 0 and bare.log == log, "no pip call is needed for it"
    assert bare.record["torch_python"] == str(theirs) and bare.record["asked"] == str(theirs)
    refused = bare.start("diagnose", "--torch-python", str(bare.venv / "bin/python"))
    assert refused.returncode == 2 and "is the workbook's own" in refused.stderr
    assert bare.record["torch_python"] == str(theirs)
    assert bare.start("setup").returncode == 0 and bare.record["torch_python"] == str(theirs)


@needs_pip
def test_set_up_goes_on_without_torch_says_so_and_tries_again_when_asked(bare):
    served = next(bare.wheels.glob("torch-*"))
    served.unlink()
    done = bare.start("diagnose")
    assert done.returncode == 0 and "no torch: nothing serves torch 9.9.9+cpu" in done.stderr
    assert "make setup TORCH=cpu" in done.stderr
    assert bare.record["torch_python"] is None and "nothing serves" in bare.record["why"]
    index = "--extra-index-url https://download.pytorch.org/whl/cpu "
    tries = [f"$ pip install --only-binary=:all: {more}--no-deps" for more in ("", index)]
    assert asked_for_torch(bare) == [f"{words} torch==9.9.9+cpu" for words in tries]
    log = bare.log
    assert bare.start("diagnose").stderr == "" and bare.log == log, "a warm use does not try again"
    torch_wheel(bare.wheels)
    assert bare.start("setup", "--torch", "cpu").returncode == 0
    assert bare.record["torch"] == "9.9.9+cpu" and bare.imports("tiny_needed") == "1.0"


@needs_pip
@pytest.mark.parametrize(
    ("kind", "local"), [("cuda", "cu130"), pytest.param("rocm", "rocm7.2", marks=pytest.mark.slow)]
)
def test_a_gpu_build_is_installed_only_when_asked_for_and_announced_first(bare, kind, local):
    torch_wheel(bare.wheels, f"9.9.9+{local}")
    says = 'case "$*" in *torch==*) echo "pip is asked for torch" >> "$0.order";; esac\n'
    done = bare.lacking(NO_ENSUREPIP, says).start("diagnose", "--torch", kind)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stderr.splitlines() if f"torch 9.9.9+{local}:" in line)
    assert "GB" in line and f"https://download.pytorch.org/whl/{local}" in line
    argv = f"$ pip install --only-binary=:all: torch==9.9.9+{local}"
    assert asked_for_torch(bare) == [argv]
    assert bare.record["torch"] == f"9.9.9+{local}" and bare.record["asked"] == kind


# --- the spelling of every pip call


def test_no_torch_without_its_exact_build_gets_into_a_call(tmp_path):
    lock = tmp_path / "lock.txt"
    for line in (
        *("torch", "torch>=2", "torch==2.13.0", "Torch==2.13.0", "torch~=2.13", "torch==2.13.*"),
        *("torch[a]==2.13.0+cpu", "torch==2.13.0+cu130", "torch==2.13.0+rocm7.2"),
        *("torch==2.13.0 ; python_version > '3'", "torch @ https://example.org/torch.whl"),
        *("-r more.txt", "--index-url https://x", "https://x/torch-2-py3-none-any.whl"),
        *("numpy", "numpy>=2"),
    ):
        lock.write_text(f"tiny==1.0\n{line}\n")
        with pytest.raises(ValueError):
            pip.command(["pip"], "install", [lock])
    for version in ("", "2.13.0", "2.13.0+", ">=2", "2.13.0+gpu", "2.13.0 +cpu"):
        with pytest.raises(ValueError):
            pip.command(["pip"], "install", torch=version)
    with pytest.raises(ValueError):
        pip.command(["pip"], "install", [ROOT / "env/requirements.txt"], torch="2.13.0+cu130")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20))
def test_whatever_follows_the_name_of_torch_is_exact_or_refused(rest):
    try:
        line = pip.checked("torch" + rest)
    except ValueError:
        return
    other = line.split("==")[0].replace("_", "-").replace(".", "-").lower() != "torch"
    assert other or pip.EXACT_TORCH.fullmatch(line.split(";")[0].strip())


def test_every_call_is_wheels_only_and_without_dependencies_but_for_a_gpu_build():
    locks = sorted((ROOT / "env").glob("*.txt"))
    assert len(locks) == 4
    for action, lock in itertools.product(("install", "download"), locks):
        argv = pip.command(["pip"], action, [lock])
        assert argv == ["pip", action, "--only-binary=:all:", "-r", str(lock), "--no-deps"]
    argv = pip.command(["pip"], "install", torch="2.13.0+cpu")
    assert argv[-2:] == ["--no-deps", "torch==2.13.0+cpu"]
    for local in ("cu130", "rocm7.2"):
        argv = pip.command(["pip"], "install", torch=f"2.13.0+{local}")
        assert "--no-deps" not in argv and argv[-1] == f"torch==2.13.0+{local}"


def test_only_one_function_spells_a_pip_call():
    """A word "install" or "download" in env/ is an argument of pip.command, or of the maintainers' dry run."""
    for path in [*(ROOT / "env").glob("*.py"), *(ROOT / "env/setup").glob("*.py")]:
        tree = ast.parse(path.read_text())
        allowed = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pip.command":
                allowed |= {id(argument) for argument in node.args}
            if isinstance(node, ast.List):
                words = [item.value for item in node.elts if isinstance(item, ast.Constant)]
                allowed |= {id(item) for item in node.elts} if "--dry-run" in words else set()
            if path.name == "pip.py" and isinstance(node, ast.Tuple):
                allowed |= {id(item) for item in node.elts}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in ("install", "download"):
                assert id(node) in allowed, f"{path.name}:{node.lineno}"

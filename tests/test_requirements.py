"""The pins: one source of truth, nothing that could bring a GPU build, and conda users get the same."""

import importlib.metadata
import itertools
import platform
import re
import sys
from pathlib import Path

import pytest
import yaml
from bare_checkout import ROOT, ran
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setup import pip, stamp

ENV = ROOT / "env"
PYTHONS = ("3.10.12", "3.11.2", "3.11.9", "3.12.3", "3.13.1")
PROCESSORS = ("x86_64", "aarch64")
LOCKS = ("requirements.txt", "requirements-test.txt", "requirements-maintain.txt", "torch.txt")
SOURCES = {
    "requirements.in": "requirements.txt",
    "requirements-test.in": "requirements-test.txt",
    "torch.in": "torch.txt",
}
GPU_PACKAGES = re.compile(
    r"nvidia-(?!ml-py$)|triton|pytorch-|torch(?!$)|cuda|rocm|hip|cupy|jax|tensorflow"
)


def held(lock, python="3.11.9", processor="x86_64"):
    """(name, version) of every pin that holds on Linux under a Python and processor."""
    around = {"python_version": ".".join(python.split(".")[:2]), "python_full_version": python}
    around |= {"platform_machine": processor, "sys_platform": "linux", "os_name": "posix"}
    around |= {"platform_system": "Linux", "implementation_name": "cpython"}
    around["platform_python_implementation"] = "CPython"
    wanted = [Requirement(line) for line in pip.pins(ENV / lock)]
    held = [one for one in wanted if one.marker is None or one.marker.evaluate(around)]
    return [(canonicalize_name(one.name), str(one.specifier)[2:]) for one in held]


def direct(source):
    lines = [line.strip() for line in (ENV / source).read_text().splitlines()]
    named = [line for line in lines if line and not line.startswith(("#", "-"))]
    return [canonicalize_name(Requirement(line).name) for line in named]


@pytest.mark.parametrize(
    ("lock", "python", "processor"), [*itertools.product(LOCKS, PYTHONS, PROCESSORS)]
)
def test_a_lock_names_each_package_once(lock, python, processor):
    names = [name for name, _ in held(lock, python, processor)]
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize(("source", "python"), [*itertools.product(SOURCES, PYTHONS)])
def test_every_direct_requirement_is_pinned_for_every_python(source, python):
    assert set(direct(source)) <= {name for name, _ in held(SOURCES[source], python)}


@pytest.mark.parametrize(("python", "processor"), [*itertools.product(PYTHONS, PROCESSORS)])
def test_locks_agree_where_they_name_the_same_package(python, processor):
    seen = {}
    for lock in LOCKS:
        for name, version in held(lock, python, processor):
            assert seen.setdefault(name, version) == version, f"{lock}: {name}"


@pytest.mark.parametrize("lock", LOCKS)
def test_no_pin_is_or_brings_a_gpu_build(lock):
    for line in pip.pins(ENV / lock):
        name = canonicalize_name(Requirement(line).name)
        assert not GPU_PACKAGES.match(name), line
        cpu = lock == "torch.txt" and re.fullmatch(r"torch==[0-9.]+\+cpu", line)
        assert name != "torch" or cpu, line


def test_every_lock_belongs_to_a_set_and_the_other_way_round():
    there = sorted(path.name for path in ENV.glob("*.txt"))
    assert sorted(itertools.chain(*stamp.SETS.values())) == sorted(LOCKS) == there


def test_torch_brings_what_its_own_record_asks_for():
    try:
        wanted = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no torch in .venv")
    here = {name for name, _ in held("torch.txt")}
    always = [one for one in map(Requirement, wanted) if one.marker is None]
    assert {canonicalize_name(one.name) for one in always} <= here


def test_what_is_installed_here_is_what_the_locks_pin():
    if not (Path(sys.prefix) / "casebook.json").exists():
        pytest.skip("these tests do not run in the .venv of set-up")
    for lock in LOCKS[:2]:
        wanted = held(lock, platform.python_version(), platform.machine())
        here = {(name, importlib.metadata.version(name)) for name, _ in wanted}
        assert not set(wanted) - here, lock


ENVIRONMENT = ROOT / "environment.yml"


def test_environment_yml_is_what_the_locks_make_it():
    import check_pins

    assert ENVIRONMENT.read_text() == check_pins.environment_yml(), "write it by `make lock`"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_environment_yml_brings_every_pin_of_base_tests_and_torch(processor):
    said = yaml.safe_load(ENVIRONMENT.read_text())
    (python,) = [item for item in said["dependencies"] if str(item).startswith("python=")]
    python = f"{python.removeprefix('python=')}.9"
    around = {"python_version": python[:4], "python_full_version": python, "sys_platform": "linux"}
    around |= {"platform_machine": processor, "platform_system": "Linux"}
    lines = [Requirement(line) for line in said["dependencies"][-1]["pip"] if line[0] != "-"]
    here = [one for one in lines if one.marker is None or one.marker.evaluate(around)]
    given = [(canonicalize_name(one.name), str(one.specifier)[2:]) for one in here]
    assert len(given) == len(dict(given))
    locks = ("requirements.txt", "requirements-test.txt", "torch.txt")
    assert set(given) == {pin for lock in locks for pin in held(lock, python, processor)}


def test_environment_yml_keeps_to_what_conda_and_micromamba_both_read():
    """conda: user guide, Managing environments, Creating an environment file manually; micromamba: user guide, Yaml files.

    A pip part needs pip beside it; its lines are those of a requirements file. micromamba 2.0 takes `nodefaults` for a channel
    (mamba-org/mamba#3841) and writes the pip part to another folder, where a relative path leads nowhere (#1894).
    """
    said = yaml.safe_load(ENVIRONMENT.read_text())
    assert set(said) == {"name", "channels", "dependencies"}
    assert re.fullmatch("[a-z0-9-]+", said["name"]) and said["channels"] == ["conda-forge"]
    *conda, last = said["dependencies"]
    assert "pip" in conda and list(last) == ["pip"]
    assert all(re.fullmatch(r"[a-z0-9_-]+(=[0-9.]+)?", item) for item in conda)
    options = [line for line in last["pip"] if line.startswith("-")]
    assert options == ["--extra-index-url https://download.pytorch.org/whl/cpu"]
    assert all(pip.checked(line) == line for line in last["pip"] if line not in options)
    assert "not solved by any test" in ENVIRONMENT.read_text()


def test_check_pins_says_what_it_expected():
    done = ran([sys.executable, ENV / "check_pins.py", "frob"])
    assert done.returncode == 2
    assert done.stderr == "check_pins: frob seen, expected one of lock, check\n"


def test_every_direct_requirement_earns_its_place_in_a_line():
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## What it depends on")[1]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")][1:]
    named = sorted(name.strip() for row in rows for name in row.split(","))
    assert named == direct("requirements.in")

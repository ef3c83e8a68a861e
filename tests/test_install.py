"""Installed as a package: what a wheel is made of runs from any folder, and keeps what it writes below that folder."""

import os
import re
import shutil
import sys
import tarfile

import pytest
from bare_checkout import ROOT, ran
from test_requirements import direct

tomllib = pytest.importorskip("tomllib", reason="tomllib is of Python 3.11")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.56 GiB of "
    "which 512.00 MiB is free. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by "
    "PyTorch but unallocated.\n"
)


class Installed:
    """An environment with the package in it and nothing else, and a folder elsewhere to work in."""

    def __init__(self, folder):
        self.prefix = folder / "an env"
        self.here = folder / "my work"
        self.here.mkdir()
        ran([sys.executable, "-m", "venv", "--without-pip", self.prefix], check=True)
        (self.site,) = self.prefix.glob("lib/python3.*/site-packages")

    def lay(self):
        """What hatchling makes of pyproject.toml; the slow test below builds a real wheel."""
        for path in WHEEL["only-include"]:
            near = next(at for at in WHEEL["sources"] if f"{path}/".startswith(f"{at}/"))
            to = self.site / path.replace(near, WHEEL["sources"][near], 1)
            to.parent.mkdir(parents=True, exist_ok=True)
            left_out = shutil.ignore_patterns("__pycache__")
            copy = shutil.copy2 if (ROOT / path).is_file() else shutil.copytree
            copy(ROOT / path, to, **({} if copy is shutil.copy2 else {"ignore": left_out}))
        for path, to in WHEEL["force-include"].items():
            shutil.copy2(ROOT / path, self.site / to)
        module, function = PYPROJECT["project"]["scripts"]["casebook"].split(":")
        script = f"#!{self.prefix}/bin/python\nimport sys\nfrom {module} import {function}\n"
        (self.prefix / "bin/casebook").write_text(f"{script}sys.exit({function}())\n")
        return self

    def casebook(self, *words, **env):
        argv = [self.prefix / "bin/python", self.prefix / "bin/casebook", *words]
        clean = {"PATH": os.environ["PATH"], "HOME": str(self.here), "PYTHONDONTWRITEBYTECODE": "1"}
        return ran(argv, cwd=self.here, env={**clean, **env})

    def files(self):
        return {path for path in self.site.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("installed")).lay()


def held(one):
    """What needs no other package runs in a folder elsewhere, and writes below it alone."""
    (one.here / "m.txt").write_text(MESSAGE)
    before = one.files()
    for words, seen in (
        ("boxes", "strix-halo-1-found"),
        ("diagnose --message m.txt", "the program asked for 24.00 GiB"),
        ("diagnose strix-halo-1-found", "only half of the RAM"),
        ("ttm strix-halo-1-found", "<- decides"),
        ("capture --no-torch --no-commands", "Written to"),
    ):
        done = one.casebook(*words.split())
        assert done.returncode == 0 and seen in done.stdout + done.stderr, (words, done.stderr)
    (bundle,) = (one.here / "outputs/captures").iterdir()
    assert tarfile.is_tarfile(bundle) and one.files() == before


def test_a_plain_install_answers_from_any_folder_and_writes_below_it(installed):
    held(installed)


@pytest.mark.parametrize("words", ["run notebooks/plans/quick.yaml", "replay x", "share"])
def test_a_verb_that_needs_more_names_the_extra_in_one_line(installed, words):
    done = installed.casebook(*words.split())
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "pip install 'vram-casebook[notebooks]'" in done.stderr


def test_outputs_go_where_they_are_told_to(installed, tmp_path):
    told = {"CASEBOOK_OUTPUTS": str(tmp_path / "kept")}
    done = installed.casebook("capture", "--no-torch", "--no-commands", **told)
    assert done.returncode == 0 and len(list((tmp_path / "kept/captures").iterdir())) == 1


@pytest.mark.slow
def test_with_the_other_packages_a_plan_of_its_own_runs_from_any_folder(installed):
    """The packages of these tests; a folder on PYTHONPATH may not bring another helpers, and .pth files there are not read."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    (installed.site / "more.pth").write_text(packages + "\n")
    before = installed.files()
    plan = installed.here / "one.yaml"
    plan.write_text("name: one\nruns:\n  - notebook: 03_ttm_gtt_analysis.ipynb\n")
    done = installed.casebook("run", "notebooks/plans/quick.yaml", "--dry-run")
    assert done.returncode == 0 and "01_hardware_probe" in done.stdout, done.stderr
    done = installed.casebook("run", "one.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (page,) = (installed.here / "outputs").glob("*/index.html")
    assert f"Open: {page}" in done.stdout and installed.files() == before


def test_the_extra_is_what_set_up_installs():
    extra = PYPROJECT["project"]["optional-dependencies"]["notebooks"]
    named = [re.split("[<>=]", one)[0] for one in extra]
    assert named == direct("requirements.in") and not PYPROJECT["project"]["dependencies"]
    assert not {"version"} & set(PYPROJECT["project"]), "it stands in helpers/__init__.py"


@pytest.mark.slow
def test_a_real_wheel_holds_the_same_and_an_editable_install_is_this_checkout(tmp_path, installed):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    kept = ("PATH", "HOME", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTPS_PROXY", "https_proxy")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    done = ran([*pip, "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], env=env, timeout=300)
    if done.returncode and re.search("hatchling|No matching|connection", done.stderr):
        pytest.skip("hatchling cannot be fetched here, and builds the wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    real = Installed(tmp_path)
    into = [*pip, "--python", real.prefix / "bin/python", "install", "-q", "--no-deps"]
    assert ran([*into, wheel], env=env).returncode == 0
    own = {str(path.relative_to(real.site)) for path in real.files()}
    laid = {str(path.relative_to(installed.site)) for path in installed.files()}
    shipped = {name for name in own if "dist-info" not in name and "__pycache__" not in name}
    assert shipped == laid - {"more.pth"}
    held(real)
    assert ran([*into, "-e", ROOT], env=env, timeout=300).returncode == 0
    ask = "import helpers.ground.child as c; print(c.CHECKOUT, c.OUTPUTS)"
    done = ran([real.prefix / "bin/python", "-c", ask], cwd=tmp_path, env=env)
    assert done.stdout.split() == [str(ROOT), str(ROOT / "outputs")], done.stderr

"""Set-up on hosts that lack a part, bend pip, have no network, no space or no right to write."""

import errno
import os
import pwd
import shutil
import socket
import sys
from pathlib import Path

import pytest
from bare_checkout import (
    NO_ENSUREPIP,
    NO_PIP,
    NO_VENV,
    OLD_PIP,
    lay,
    needs_pip,
    ran,
    told,
    wheel,
)
from setup import SetupError, pip, ready, stamp, venv

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n'
# A pip that answers PEP 668 as on Debian 12, where it is asked to install for the host itself.
MANAGED = """\
case "$*" in *"--python "*|*"--target "*) ;; "-m pip install"*) echo "error: externally-managed-environment"; exit 1;; esac
"""


@pytest.fixture
def bare(tmp_path):
    return lay(tmp_path)


@pytest.fixture
def real(tmp_path):
    return lay(tmp_path, real_pip=True)


@needs_pip
@pytest.mark.parametrize(
    ("lacks", "way"),
    [
        pytest.param((), "venv, pip-", marks=pytest.mark.slow),
        ((NO_ENSUREPIP, MANAGED), "venv, the host's pip"),
    ],
    ids=["whole", "no ensurepip, externally managed"],
)
def test_each_way_of_making_venv_ends_with_the_packages(real, lacks, way):
    done = real.lacking(*lacks).start("diagnose", "--torch=none")
    assert done.returncode == 0, done.stderr
    assert real.record["made"]["way"].startswith(way)
    assert real.imports("tiny") == "1.0"
    said = told(done)
    assert said["path"][0] == str(real.root)
    for call in real.calls():
        assert not call.startswith("-m pip install"), "nothing is ever installed for the host"
    warm = real.start("diagnose")
    assert warm.returncode == 0 and warm.stderr == "", warm.stderr


@needs_pip
@pytest.mark.slow
def test_the_wheel_of_pip_in_the_wheelhouse_serves_where_the_host_has_no_pip(real):
    wheels = venv.wheels_of_pip(sys.executable, real.root, os.environ)
    if not wheels:
        pytest.skip("this Python brings no wheel of pip")
    shutil.copytree(real.wheels, real.root / "wheelhouse")
    shutil.copy2(wheels[0], real.root / "wheelhouse")
    host = real.lacking(NO_ENSUREPIP, NO_PIP)
    done = host.start("diagnose", "--torch=none", PIP_FIND_LINKS="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert real.imports("tiny") == "1.0"


@needs_pip
@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ((NO_VENV, NO_PIP), "No module named venv"),
        ((NO_ENSUREPIP, OLD_PIP), "no such option: --python"),
    ],
    ids=["no venv", "pip before 22.3"],
)
def test_where_every_way_fails_one_line_names_the_package_and_one_what_works(bare, lacks, why):
    done = bare.lacking(*lacks).start("diagnose", PATH="/usr/bin:/bin")
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 3, done.stderr
    assert "Do: " in lines[1] and why in lines[1]
    assert lines[2].startswith(
        "Works right now, with nothing installed: python3 -m helpers capture"
    )
    assert not (bare.venv / "casebook.json").exists()
    assert bare.lacking(NO_ENSUREPIP).start("capture").returncode == 0


@pytest.mark.parametrize(
    ("os_release", "package"),
    [
        (DEBIAN, "apt-get install python3-venv"),
        ('ID=ubuntu\nID_LIKE="debian"\n', "apt-get install python3-venv"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt-get install python3-venv"),
        ("ID=fedora\n", "dnf install python3-pip"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install python3-pip"),
        ("ID=arch\n", "pacman -S python-pip"),
        ("ID=cachyos\nID_LIKE=arch\n", "pacman -S python-pip"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', "zypper install python3-pip"),
        ("ID=alpine\n", "apk add py3-pip"),
        ("ID=unheardof\n", "with the package manager"),
        ("", "with the package manager"),
    ],
)
def test_the_package_is_named_as_the_distribution_names_it(os_release, package):
    assert package in venv.package_to_install(os_release)


# --- what bends pip

BENDING = dict.fromkeys(["PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_DRY_RUN"], "1")
BENDING |= {f"PIP_{name}": "/x" for name in ("CONSTRAINT", "TARGET", "PREFIX", "PYTHON", "ROOT")}
BENDING |= {"PIP_NO_BINARY": ":all:"}


@needs_pip
def test_what_bends_pip_and_python_does_not_reach_it_from_variables_or_a_pip_conf(real, tmp_path):
    """Of a pip.conf only the sources are read: without its find-links nothing could be installed here."""
    planted = tmp_path / "planted"
    conf = tmp_path / "pip.conf"
    planted.mkdir()
    for name in ("pip.py", "tiny.py"):
        (planted / name).write_text("raise SystemExit('planted')\n")
    conf.write_text(
        f"[global]\nno-index = true\nfind-links = {real.wheels}\nrequire-virtualenv = true\n"
        "[install]\nuser = true\nconstraint = /nonexistent/constraint.txt\nprefix = /x\n"
    )
    real.environ = {"PIP_CONFIG_FILE": str(conf), "PIP_FIND_LINKS": "", "PIP_NO_INDEX": ""}
    bent = {**BENDING, "PIP_TARGET": str(tmp_path / "target"), "PYTHONPATH": str(planted)}
    done = real.start("diagnose", "--torch=none", **bent, PYTHONHOME=sys.base_prefix)
    assert done.returncode == 0, done.stderr
    assert real.imports("tiny") == "1.0" and not (tmp_path / "target").exists()


@needs_pip
def test_sources_are_kept_and_everything_else_is_left_out():
    names = ("INDEX_URL", "EXTRA_INDEX_URL", "PROXY", "CERT", "FIND_LINKS", "TRUSTED_HOST")
    kept = {f"PIP_{name}": f"https://a.example/{name} https://b.example" for name in names}
    around = {"HTTPS_PROXY": "http://proxy.example:3128", "SSL_CERT_FILE": "/etc/own.pem"}
    around |= {"PATH": os.environ["PATH"]}
    environ = {**kept, **BENDING, **around, "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": "/x"}
    for asked in ([sys.executable, "-m", "pip"], ["/nonexistent/pip"]):
        env = pip.environment(environ, pip.settings(asked, environ), Path("/nonexistent"))
        assert {name: env.get(name) for name in [*kept, *around]} == {**kept, **around}
        assert not {*BENDING, "PYTHONPATH"} & set(env)
        assert env["PIP_CONFIG_FILE"] == os.devnull


# --- no network

UNREACHED = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}


@pytest.mark.slow
def test_no_network_says_how_to_bring_the_wheels(real):
    real.environ = {**UNREACHED, "PIP_RETRIES": "0"}
    done = real.start("diagnose")
    assert done.returncode == 1
    assert "no index that is reached has it: `make wheelhouse` under Python 3." in done.stderr
    assert "python3 -m helpers capture" in done.stderr and "Traceback" not in done.stderr


@needs_pip
@pytest.mark.slow
def test_a_proxy_that_does_not_answer_is_named(real):
    with socket.socket() as closed:  # nobody listens there, and nobody else may
        closed.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
        real.environ = {**UNREACHED, "PIP_INDEX_URL": "https://index.example/simple"}
        real.environ |= {"PIP_PROXY": proxy, "PIP_RETRIES": "1"}
        done = real.lacking(NO_ENSUREPIP).start("diagnose", "--torch=none")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pip stopped (the proxy that is set does not answer; " in done.stderr
    assert "no index that is reached has it: `make wheelhouse` under Python 3." in done.stderr


# A uv that is asked by a wheelhouse alone: it notes what it was given, and leaves the work to pip.
ASKED_UV = """\
import os, sys
with open(os.environ["VIRTUAL_ENV"] + "/uv.calls", "a") as calls:
    print(sys.argv[1:], sorted(name for name in os.environ if name[:3] == "UV_"), file=calls)
sys.exit(2)
"""


@needs_pip
@pytest.mark.slow
def test_a_wheelhouse_of_the_real_pip_brings_uv_and_is_its_only_source(real, tmp_path):
    there = lay(tmp_path / "there", real_pip=True)
    for one in (there, real):
        wheel(one.wheels, "uv", files={"uv/__init__.py": "", "uv/__main__.py": ASKED_UV})
        (one.root / "env/requirements-maintain.txt").write_text("uv==1.0\n")
    made = there.start("wheelhouse")
    assert made.returncode == 0, made.stderr
    house = there.root / "wheelhouse"
    assert {"tiny", "torch", "uv"} <= {path.name.split("-")[0] for path in house.iterdir()}
    shutil.copytree(house, real.root / "wheelhouse")
    real.environ = UNREACHED
    done = real.lacking(NO_ENSUREPIP).start("diagnose")
    assert done.returncode == 0, done.stderr
    assert real.imports("tiny") == "1.0" and real.record["torch"] == "9.9.9+cpu"
    calls = (real.venv / "uv.calls").read_text().splitlines()
    assert calls and all("'--no-index'" in call for call in calls)
    assert all(str(real.root / "wheelhouse").split("/")[-1] in call for call in calls)
    assert not any("UV_DEFAULT_INDEX" in call or "UV_EXTRA" in call for call in calls)


@needs_pip
def test_a_wheelhouse_made_elsewhere_is_the_only_source(bare, tmp_path):
    there = lay(tmp_path / "there")
    made = there.start("wheelhouse")
    assert made.returncode == 0, made.stderr
    house = there.root / "wheelhouse"
    names = {path.name.split("-")[0] for path in house.iterdir()}
    assert {"tiny", "tiny_test", "tiny_needed", "torch"} <= names and not list(house.glob("*.log"))
    assert not (there.root / "wheelhouse.part").exists()
    shutil.copytree(house, bare.root / "wheelhouse")
    bare.environ = UNREACHED
    done = bare.start("bench")
    assert done.returncode == 0, done.stderr
    assert bare.imports("tiny_needed") == "1.0" and bare.record["torch"] == "9.9.9+cpu"
    assert "127.0.0.1" not in bare.log


@needs_pip
def test_a_wheelhouse_that_lacks_a_wheel_is_named(bare):
    shutil.copytree(bare.wheels, bare.root / "wheelhouse")
    next((bare.root / "wheelhouse").glob("tiny-*")).unlink()
    done = bare.start("diagnose")
    assert done.returncode == 1
    assert "tiny==1.0" in done.stderr and "with `make wheelhouse` under Python 3." in done.stderr


@needs_pip
@pytest.mark.slow
def test_a_wheelhouse_without_torch_says_so(bare):
    next(bare.wheels.glob("torch-*")).unlink()
    done = bare.start("wheelhouse")
    assert done.returncode == 0
    assert "without torch 9.9.9+cpu: No matching distribution" in done.stderr


@needs_pip
def test_a_download_that_fails_leaves_the_old_wheelhouse(bare):
    (bare.root / "wheelhouse").mkdir()
    (bare.root / "wheelhouse/old.whl").touch()
    next(bare.wheels.glob("tiny_test-*")).unlink()
    done = bare.start("wheelhouse")
    assert done.returncode == 1
    assert "tiny_test==1.0" in done.stderr and len(done.stderr.splitlines()) == 1
    assert [path.name for path in (bare.root / "wheelhouse").iterdir()] == ["old.whl"]


# --- no space, no right to write


@pytest.mark.parametrize(
    "words", ["[Errno 28] No space left on device", "[Errno 122] Disk quota exceeded"]
)
def test_a_full_disk_is_one_line(bare, words):
    full = f'case "$*" in *" install "*) echo "ERROR: Could not install packages due to an OSError: {words}"; exit 1;; esac\n'
    done = bare.lacking(NO_ENSUREPIP, full).start("diagnose")
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert "no space left for" in lines[-2] and "GiB free" in lines[-2], done.stderr
    assert not (bare.venv / "casebook.json").exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_made_is_one_line(bare, number, monkeypatch):
    def refuse(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SetupError) as caught:
        ready.ready(bare.root, ("base",), None, bare.env())
    said = str(caught.value).splitlines()
    assert len(said) == 2 and str(bare.venv) in said[0] and "python3 -m helpers capture" in said[1]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_checkout_is_one_line_for_an_ordinary_user(bare):
    bare.root.chmod(0o555)
    try:
        done = bare.start("diagnose")
    finally:
        bare.root.chmod(0o755)
    assert done.returncode == 1 and "cannot be written (Permission denied)" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")
def test_an_ordinary_user_is_told_of_a_checkout_that_is_not_theirs(bare):
    nobody = pwd.getpwnam("nobody")
    ask = "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))"
    known = filter(os.path.exists, ("/usr/bin/python3", "/usr/local/bin/python3"))
    may = [one for one in known if ran([one, "-c", ask], user=nobody.pw_uid).returncode == 0]
    python = (may or [""])[0]
    if not python:
        pytest.skip("no Python that an ordinary user may run")
    for folder in [bare.root, *bare.root.parents]:
        if os.stat(folder).st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    done = ran([python, bare.root / "env/bootstrap.py", "diagnose"], env=env, cwd="/", **who)
    assert done.returncode == 1, done.stderr
    assert "cannot be written (Permission denied)" in done.stderr


def test_a_link_to_another_disk_is_filled_and_kept(tmp_path):
    disk = tmp_path / "disk"
    link = tmp_path / ".venv"
    (disk / "lib/deep").mkdir(parents=True)
    (disk / venv.MARK).touch()
    (disk / "link").symlink_to(tmp_path)
    link.symlink_to(disk)
    venv.empty(link)
    assert link.is_symlink() and tmp_path.exists()
    assert [path.name for path in disk.iterdir()] == [venv.MARK]


@pytest.mark.slow
@pytest.mark.skipif(
    not list(Path("/usr/lib").glob("python3.1[0-3]/EXTERNALLY-MANAGED")),
    reason="no externally managed Python here",
)
def test_a_real_externally_managed_python_sets_up(real):
    real.host = "/usr/bin/python3"
    done = real.start("diagnose", "--torch=none")
    assert done.returncode == 0, done.stderr
    assert stamp.read(real.venv) and wheel(real.wheels, "tiny").exists()

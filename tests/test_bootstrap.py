"""Set-up as a person meets it: the first use, the warm one, interruptions, wrong use, and what each verb becomes."""

import ast
import json
import os
import re
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest
from bare_checkout import NO_ENSUREPIP, ROOT, lay, needs_pip, ran, told, wheel
from setup import call, stamp, verbs

# Runs a verb and writes down what it starts and whom it calls; the exec at its end replaces the process.
AUDITED = """
import os, runpy, sys
kept = os.open(os.environ["AUDIT"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
watched = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.connect",
           "socket.getaddrinfo", "os.rename", "os.remove", "os.mkdir", "shutil.rmtree")
sys.addaudithook(lambda event, arguments: os.write(kept, (event + chr(10)).encode()) if event in watched else None)
sys.executable = sys.argv.pop(1); sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def bare(tmp_path):
    return lay(tmp_path)


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A checkout that is set up; the tests over it change nothing of it."""
    checkout = lay(tmp_path_factory.mktemp("warm"))
    done = checkout.start("bench")
    assert done.returncode == 0, done.stderr
    return checkout


@pytest.fixture(scope="module")
def mended(tmp_path_factory):
    """A checkout that is set up; each test over it breaks something that the next use mends."""
    checkout = lay(tmp_path_factory.mktemp("mended"))
    done = checkout.start("bench", "--torch=none")
    assert done.returncode == 0, done.stderr
    return checkout


@needs_pip
def test_first_use_sets_up_shows_progress_and_records_what_it_found(bare):
    done = bare.start("diagnose")
    assert done.returncode == 0, done.stderr
    assert told(done)["argv"] == ["run", "notebooks/plans/quick.yaml"]
    assert bare.imports("tiny") == "1.0"
    assert bare.imports("tiny_test") == "", "the test set is for the verbs that test"
    record = bare.record
    assert (record["torch"], record["cuda"], record["hip"]) == ("9.9.9+cpu", None, None)
    assert record["torch_python"] == record["owner"] == str(bare.venv / "bin/python")
    assert "set up in" in done.stderr and "TOLD" not in done.stderr
    assert json.loads((bare.venv / "share/jupyter/lab/settings/overrides.json").read_text())


@needs_pip
def test_warm_use_starts_no_process_opens_no_connection_and_writes_nothing(warm, tmp_path):
    def there():
        return sorted((str(path), path.lstat().st_mtime_ns) for path in warm.root.rglob("*"))

    audit, before = tmp_path / "audit", there()
    nowhere = {"PIP_FIND_LINKS": "/nonexistent", "PATH": "/nonexistent"}
    env = warm.env(AUDIT=str(audit), PYTHONDONTWRITEBYTECODE="1", **nowhere)
    program = ["/nonexistent/python3", warm.root / "env/bootstrap.py", "bench"]
    done = ran([sys.executable, "-c", AUDITED, *program], env=env)
    assert done.returncode == 0, done.stderr
    assert audit.read_text().split() == ["os.exec"]
    assert done.stderr == ""
    assert there() == before


@needs_pip
def test_children_see_the_checkout_first_and_nobody_elses_packages(warm, tmp_path):
    (tmp_path / "helpers.py").write_text("raise SystemExit('another helpers')\n")
    bent = {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/x", "PYTHONOPTIMIZE": "2"}
    said = told(warm.start_from(tmp_path, "bench", "--json", JUPYTER_PATH="/x", **bent))
    assert said["argv"] == ["bench", "--json"]
    assert said["path"][0] == str(warm.root) == said["cwd"]
    assert str(tmp_path) not in said["path"]
    assert said["env"]["PYTHONPATH"] == str(warm.root) and said["env"]["PYTHONNOUSERSITE"] == "1"
    assert said["env"]["JUPYTER_PREFER_ENV_PATH"] == "1"
    assert not {"PYTHONSTARTUP", "PYTHONOPTIMIZE", "JUPYTER_PATH"} & set(said["env"])
    assert said["python"] == str(warm.venv / "bin/python")


@needs_pip
def test_any_program_of_the_venv_imports_the_checkouts_helpers_from_any_folder(warm, tmp_path):
    argv = [warm.venv / "bin/python", "-c", "import helpers; print(helpers.__file__)"]
    done = ran(argv, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert done.stdout.strip() == str(warm.root / "helpers/__init__.py"), done.stderr


@needs_pip
@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        ("diagnose --box cpu-only", "run notebooks/plans/quick.yaml --box cpu-only"),
        ("overnight plan.yaml --resume", "run plan.yaml --resume"),
        ("check-gpu --gpu 0000:03:00.0", "check --gpu 0000:03:00.0"),
    ],
)
def test_verbs_become_commands_of_helpers(warm, words, becomes):
    assert told(warm.start(*words.split()))["argv"] == becomes.split()


@needs_pip
def test_a_plan_is_found_from_the_callers_folder(warm, tmp_path):
    (tmp_path / "mine.yaml").touch()
    said = told(warm.start_from(tmp_path, "overnight", "mine.yaml"))
    assert said["argv"] == ["run", str(tmp_path / "mine.yaml")]


@needs_pip
def test_the_exit_code_is_the_commands_own_also_without_standard_input(warm):
    argv = ["sh", "-c", 'exec "$@" <&-', "sh", *warm.command("bench")]
    done = ran(argv, env=warm.env(TELL_EXIT="7"))
    assert done.returncode == 7 and told(done)["argv"] == ["bench"], done.stderr


@needs_pip
def test_a_home_that_cannot_be_written_gets_folders_for_jupyter(warm):
    env = call.child_environment(warm.root, {"HOME": "/nonexistent", "MPLCONFIGDIR": "/mine"})
    assert env["JUPYTER_RUNTIME_DIR"].endswith(f"casebook-{os.getuid()}/jupyter_runtime_dir")
    assert env["MPLCONFIGDIR"] == "/mine"
    env = call.child_environment(warm.root, {"HOME": str(warm.home)})
    assert "JUPYTER_RUNTIME_DIR" not in env


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("frob", "frob: no such verb"),
        ("test --torch rocmm", "--torch rocmm: expected one of cpu, rocm, cuda, none"),
        ("test --torch", "--torch (nothing)"),
        ("setup --torch cpu --torch-python /x", "once"),
        ("setup --torch-python=", "expected the path of a Python"),
        ("setup --torch-python /nonexistent/python", "No such file"),
        ("overnight", "no plan seen"),
        ("help me", "takes no argument, seen: me"),
        ("wheelhouse --torch cpu", "does not use torch"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2_and_changes_nothing(bare, words, seen):
    done = bare.start(*words.split())
    assert done.returncode == 2
    assert seen in done.stderr and len(done.stderr.splitlines()) == 1 and not done.stdout
    assert not bare.venv.exists()


@needs_pip
def test_an_interrupted_set_up_leaves_no_stamp_and_goes_on_the_next_time(bare):
    bare.lacking(NO_ENSUREPIP, 'case "$*" in *"install"*) touch "$0.busy"; exec sleep 60;; esac\n')
    child = bare.begin("diagnose", "--torch=none")
    busy = Path(bare.host + ".busy")
    for _ in range(600):
        if busy.exists() or child.poll() is not None:
            break
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    said = child.communicate(timeout=30)[1]
    assert child.returncode == 130
    assert said.strip().splitlines()[-1].startswith("interrupted") and "Traceback" not in said
    assert not (bare.venv / "casebook.json").exists()
    done = bare.lacking(NO_ENSUREPIP).start("diagnose", "--torch=none")
    assert done.returncode == 0, done.stderr
    assert "setting up" in done.stderr and bare.imports("tiny") == "1.0"
    assert not (bare.venv / "set-up-is-busy").exists()
    assert stamp.read(bare.venv)


@needs_pip
def test_what_an_interruption_left_by_half_is_installed_again(mended):
    """Also where the sets were whole already, and torch was on its way."""
    site = next(mended.venv.glob("lib/python3.*/site-packages"))
    (site / "tiny.py").unlink()
    (mended.venv / "set-up-is-busy").touch()
    assert mended.start("setup", "--torch=none").returncode == 0
    assert mended.imports("tiny") == "1.0"


@needs_pip
def test_the_count_only_rises_and_what_is_done_in_silence_is_named(bare):
    slow = 'case "$*" in *"-m venv"*|*" install "*) sleep 3;; esac\n'
    done = bare.lacking(NO_ENSUREPIP, slow).start("diagnose")
    assert done.returncode == 0 and "\r" not in done.stderr, done.stderr
    counts = [int(share) for share in re.findall(r"set-up: (\d+)%", done.stderr)]
    assert counts and counts == sorted(counts)
    assert {"making .venv", "fetching packages"} <= {
        line.rpartition(": ")[2] for line in done.stderr.splitlines()
    }


# A uv that takes pip's words; it says with what settings it was called.
FAKE_UV = f"""\
import json, os, runpy, sys
with open(os.environ["HOME"] + "/uv.calls", "a") as calls:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=calls)
if FAILS:
    sys.exit(2)
os.environ["PIP_FIND_LINKS"] = os.environ["UV_FIND_LINKS"].replace(",", " ")
sys.argv += ["--python", os.environ["VIRTUAL_ENV"] + "/bin/python"]
runpy.run_path({str(ROOT / "tests/tiny_pip.py")!r}, run_name="__main__")
"""


@needs_pip
@pytest.mark.parametrize("fails", [False, True])
def test_uv_installs_where_a_source_serves_it_and_pip_what_it_cannot(bare, fails):
    main = FAKE_UV.replace("FAILS", str(fails))
    wheel(bare.wheels, "uv", files={"uv/__init__.py": "", "uv/__main__.py": main})
    (bare.root / "env/requirements-maintain.txt").write_text("uv==1.0\n")
    bent = {"UV_INDEX_URL": "https://theirs", "UV_TARGET": "/x"}
    done = bare.start("diagnose", PIP_TRUSTED_HOST="own.example", **bent)
    assert done.returncode == 0, done.stderr
    assert bare.imports("tiny") == "1.0" and bare.record["torch"] == "9.9.9+cpu"
    calls = [json.loads(line) for line in (bare.home / "uv.calls").read_text().splitlines()]
    assert len(calls) == 3 == bare.log.count("$ uv pip install")
    for argv, env in calls:
        assert "--no-index" in argv and "--no-deps" in argv
        assert env["UV_INSECURE_HOST"] == "own.example" and not {*bent} & {*env}
    assert bare.log.count("$ pip install") == (4 if fails else 1)
    assert not (bare.venv / ".uv").exists()


@needs_pip
def test_what_a_killed_set_up_left_running_is_waited_for(bare):
    busy = 'case "$*" in *"install"*) echo $$ > "$0.pid"; mv "$0.pid" "$0.busy"; exec sleep 60;; esac\n'
    bare.lacking(NO_ENSUREPIP, busy)
    first = bare.begin("diagnose", "--torch=none")
    left = Path(bare.host + ".busy")
    while not left.exists() and first.poll() is None:
        time.sleep(0.05)
    first.kill()
    first.communicate()
    bare.lacking(NO_ENSUREPIP)
    second = bare.begin("diagnose", "--torch=none")
    assert second.stderr is not None
    assert second.stderr.readline().startswith("another set-up of this checkout is running")
    os.kill(int(left.read_text()), signal.SIGKILL)
    second.communicate(timeout=60)
    assert second.returncode == 0 and bare.imports("tiny") == "1.0"


@needs_pip
def test_a_venv_whose_python_is_gone_is_made_anew(mended):
    python = mended.venv / "bin/python"
    python.unlink()
    python.symlink_to("/nonexistent/python3")
    done = mended.start("diagnose", "--torch=none")
    assert done.returncode == 0, done.stderr
    assert "setting up" in done.stderr and mended.imports("tiny") == "1.0"


def test_a_venv_of_somebody_else_is_refused_and_left_as_it_is(bare):
    bare.venv.mkdir()
    (bare.venv / "theirs").write_text("precious")
    done = bare.start("diagnose", "--torch=none")
    assert done.returncode == 1
    assert "was not made by env/bootstrap.py" in done.stderr and len(done.stderr.splitlines()) == 1
    assert [path.name for path in bare.venv.iterdir()] == ["theirs"]


def test_a_link_to_the_venv_of_another_checkout_is_refused_and_that_one_left_whole(bare, tmp_path):
    other = tmp_path / "other/.venv"
    (other / "bin").mkdir(parents=True)
    mark = {"way": "venv", "python": str(other / "bin/python"), "version": "3.11", "pip": ["pip"]}
    (other / "made-by-bootstrap").write_text(json.dumps(mark))
    bare.venv.symlink_to(other)
    done = bare.start("diagnose", "--torch=none")
    assert done.returncode == 1 and "remove the link" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and (other / "bin").is_dir()


@needs_pip
def test_a_changed_lock_is_installed_and_only_that(mended):
    wheel(mended.wheels, "tiny_test", "2.0")
    (mended.root / "env/requirements-test.txt").write_text("tiny_test==2.0\n")
    kept = mended.log
    assert mended.start("diagnose", "--torch=none").returncode == 0
    assert mended.log == kept, "diagnose does not need the test set"
    assert mended.start("bench", "--torch=none").returncode == 0
    assert mended.imports("tiny_test") == "2.0"
    assert mended.log[len(kept) :].count("$ pip") == 1


@needs_pip
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema_version": 99}', '{"schema_version": 1, "made": 3}']
)
def test_a_torn_record_is_written_again(warm, tmp_path, text):
    (tmp_path / "casebook.json").write_text(text)
    assert stamp.read(tmp_path) is None


@needs_pip
def test_a_copied_checkout_does_not_trust_the_record_it_came_with(warm, tmp_path):
    shutil.copytree(warm.venv, tmp_path / ".venv", symlinks=True)
    assert stamp.read(tmp_path / ".venv") is None


def test_the_record_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    kept = tmp_path / "casebook.json"
    kept.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        stamp.write_whole(kept, "new")
    assert kept.read_text() == "old" and list(tmp_path.iterdir()) == [kept]


# --- the Python that runs it


def test_bootstrap_parses_on_python_3_8():
    ast.parse((ROOT / "env/bootstrap.py").read_text(), feature_version=(3, 8))


def test_an_unsupported_python_hands_over_or_says_what_works(monkeypatch, tmp_path, capsys):
    import bootstrap

    shim = tmp_path / "shim/python3.13"
    good = tmp_path / "good/python3.12"
    for path, text in ((shim, "exit 127"), (good, "echo 3 12")):
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    became = []
    monkeypatch.setattr(bootstrap, "ROOT", str(tmp_path))
    monkeypatch.setattr(os, "execv", lambda path, argv: became.append(argv))
    monkeypatch.setenv("PATH", f"{shim.parent}:{good.parent}")
    bootstrap.hand_over(["test"])
    assert became == [[str(good), str(ROOT / "env/bootstrap.py"), "test"]]
    capsys.readouterr()
    monkeypatch.setenv("PATH", str(shim.parent))
    assert bootstrap.hand_over(["test"]) == 2
    said = capsys.readouterr().err
    assert "3.10 to 3.13 expected" in said and len(said.splitlines()) == 1
    assert "python3 -m helpers capture" in said


# A Python of another version, as far as the set-up can see.
PLAYED = """
import runpy, sys
version = tuple(map(int, sys.argv.pop(1).split(".")))
sys.version_info, sys.version = version, ".".join(map(str, version)) + " (played)"
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("version", ["3.8.18", "3.9.2", "3.14.0", "4.0.0"])
def test_a_python_too_old_or_too_new_is_refused_in_one_line_before_anything_is_made(bare, version):
    program = [sys.executable, "-c", PLAYED, version, bare.root / "env/bootstrap.py", "diagnose"]
    done = ran(program, env=bare.env(PATH="/nonexistent"), cwd="/")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"Python {version} seen, 3.10 to 3.13 expected" in done.stderr
    assert "install one" in done.stderr and not bare.venv.exists()


def test_capture_needs_no_set_up(bare):
    said = told(bare.start("capture", "--out", "x", PYTHONDONTWRITEBYTECODE="1"))
    assert said["argv"] == ["capture", "--out", "x"] and said["path"][0] == str(bare.root)
    assert not bare.venv.exists()


def test_capture_as_one_file_runs_alone(bare, tmp_path):
    shutil.rmtree(bare.root / "helpers")
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "helpers", bare.root / "helpers", ignore=left_out)
    assert bare.start("capture.pyz").returncode == 0
    moved = shutil.move(bare.root / "capture.pyz", tmp_path / "moved.pyz")
    for python in [sys.executable, *filter(None, map(shutil.which, ("python3.8", "python3.9")))]:
        if ran([python, "-V"]).returncode == 0:
            done = ran([python, "-I", moved, "--help"], cwd="/")
            assert done.returncode == 0 and "--out" in done.stdout, done.stderr
            for words in (
                ("--message", tmp_path / "error"),
                (ROOT / "env/boxes/cuda-24gb-tuning",),
            ):
                (tmp_path / "error").write_text("CUDA out of memory. Tried to allocate 2.00 GiB.\n")
                asked = ("diagnose", *map(str, words), "--wide")
                done = ran([python, "-I", "-S", moved, *asked], cwd="/")
                own = ran([python, "-I", "-S", ROOT / "helpers/__main__.py", *asked], cwd="/")
                here = own.stdout.replace("casebook capture", "python3 capture.pyz capture")
                assert done.returncode == 0 and done.stdout == here, done.stderr
            done = ran([python, "-I", "-S", moved, "diagnose", "nosuch"], cwd="/")
            assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


# --- make, CI, lab, tests


def dry_make(*words):
    """What make would do; under `make test` its own variables must not reach it."""
    outer = "MAKEFLAGS MAKELEVEL MFLAGS MAKEOVERRIDES ARGS BOX PLAN GPU TORCH TORCH_PYTHON"
    outer = f"{outer} RELEASE SOURCE HEADERS".split()
    env = {name: value for name, value in os.environ.items() if name not in outer}
    return ran(["make", "-n", *words], cwd=ROOT, env=env, check=True)


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_every_verb_is_one_line_of_make_over_bootstrap():
    text = (ROOT / "Makefile").read_text()
    listed = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    assert sorted(listed) == sorted(verbs.VERBS)
    for verb in listed:
        done = dry_make(verb)
        assert done.stdout.split() == ["python3", "env/bootstrap.py", verb], done.stdout


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["diagnose", "BOX=my box", "TORCH=none"], 'diagnose --torch "none"  --box "my box"'),
        (["overnight", "PLAN=a b.yaml"], 'overnight   "a b.yaml"'),
        (["check-gpu", "GPU=0000:03:00.0"], 'check-gpu   --gpu "0000:03:00.0"'),
        (["setup", "TORCH_PYTHON=/my env/python"], 'setup  --torch-python "/my env/python"'),
        (["test", "ARGS=-k probe"], "test   -k probe"),
        (["oracle-rocm", "SOURCE=a@v2.12.0"], 'oracle-rocm  --source "a@v2.12.0"'),
        (["test", "PYTHON=python3.12"], "test"),
    ],
)
def test_make_variables_reach_the_verb(words, becomes):
    done = dry_make(*words)
    assert done.stdout.split("env/bootstrap.py ")[1].split() == becomes.split()


def test_ci_runs_the_test_command_from_anywhere(tmp_path):
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$PWD: $*"\n')
    make.chmod(0o755)
    assert (ROOT / ".ci/run").stat().st_mode & stat.S_IXUSR
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = ran(["bash", ROOT / ".ci/run"], cwd="/", env=env)
    assert done.stdout == f"{ROOT}: test\n"


@pytest.mark.parametrize(
    ("uid", "display", "extra"), [(0, "", {"--allow-root", "--no-browser"}), (1000, ":0", set())]
)
def test_lab_stays_on_this_machine(uid, display, extra, tmp_path, monkeypatch, capsys):
    became = []
    monkeypatch.setattr(call.Call, "become", lambda self, *argv: became.extend(argv))
    monkeypatch.setattr(os, "getuid", lambda: uid)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks/01_hardware_probe.ipynb", tmp_path / "notebooks")
    verbs.lab(call.Call(tmp_path, [], {"DISPLAY": display}))
    assert "--ServerApp.ip=127.0.0.1" in became
    assert "--LabApp.default_url=/lab/tree/outputs/lab/01_hardware_probe.ipynb" in became
    assert {"--allow-root", "--no-browser"} & set(became) == extra
    said = capsys.readouterr().out
    port = next(word for word in became if word.startswith("--ServerApp.port=")).split("=")[1]
    token = re.findall(r"token=(\w{48})", said)[0]
    held = tmp_path / "outputs/lab/.jupyter" / port / "jupyter_server_config.json"
    assert json.loads(held.read_text()) == {"IdentityProvider": {"token": token}}
    assert token not in " ".join(became)
    assert "--ServerApp.log_level=WARN" in became and "Ctrl-C twice ends it" in said
    left = [path for path in (tmp_path / "outputs").rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in left} == {0}
    assert f"ssh -L {port}:127.0.0.1:{port} " in said
    assert ("--allow-root is passed" in said) == (uid == 0)


@pytest.mark.slow
def test_a_lab_asks_for_its_token_whatever_the_users_own_settings_say(tmp_path):
    (tmp_path / ".jupyter").mkdir()
    settings = "c.IdentityProvider.token = ''\nc.ServerApp.token = ''\n"
    for name in ("jupyter_config", "jupyter_server_config", "jupyter_lab_config"):
        (tmp_path / ".jupyter" / f"{name}.py").write_text(settings)
    asked = call.Call(tmp_path, [], {**os.environ, "HOME": str(tmp_path)})
    env = verbs.with_token(asked, "1", "secret").environ
    ask = (
        "from jupyterlab.labapp import LabApp\n"
        "app = LabApp.initialize_server(['--no-browser', '--allow-root', '--port=0'])\n"
        "print(app.identity_provider.token)"
    )
    done = ran([sys.executable, "-c", ask], env=dict(env), cwd=tmp_path)
    assert done.stdout.split() == ["secret"], done.stderr


def test_lab_takes_a_port_and_opens_copies_that_look_at_this_machine_and_are_never_written_over(
    tmp_path, monkeypatch, capsys
):
    became = []
    monkeypatch.setattr(call.Call, "become", lambda self, *argv: became.extend(argv))
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.9\n")
    verbs.lab(call.Call(tmp_path, ["--port=18801"], {}))
    assert [word for word in became if "port=" in word] == ["--port=18801"]
    became.clear()
    verbs.lab(call.Call(tmp_path, ["--port", "18801"], {}))
    assert became[-2:] == ["--port", "18801"] and not [word for word in became if "port=" in word]
    said = capsys.readouterr().out
    assert said.count("ssh -L 18801:127.0.0.1:18801 ") == 2
    assert "then: Run > Run All Cells" in said and "outputs/lab/cases" in said
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        copy = json.loads((tmp_path / "outputs/lab" / path.name).read_text())
        assert not any(cell.get("outputs") for cell in copy["cells"])
        # As JupyterLab finds its kernel; else it marks the notebook as changed as soon as it is open.
        about = copy["metadata"]
        assert about["kernelspec"]["display_name"] == "Python 3 (ipykernel)"
        assert about["language_info"]["version"] == "3.12.9"
        assert 'box: str = "live"' in "".join("".join(cell["source"]) for cell in copy["cells"])
        assert (tmp_path / "notebooks" / path.name).read_bytes() == path.read_bytes()
        assert "Run > Run All Cells" in "".join(copy["cells"][0]["source"])
    for path in (ROOT / "notebooks/cases").glob("*.ipynb"):  # to read at once, as they were told
        copy = json.loads((tmp_path / "outputs/lab/cases" / path.name).read_text())
        assert [cell["source"] for cell in copy["cells"]] == [
            cell["source"] for cell in json.loads(path.read_text())["cells"]
        ]
        assert any(cell.get("outputs") for cell in copy["cells"])
    mine = tmp_path / "outputs/lab/01_hardware_probe.ipynb"
    mine.write_text("mine")
    verbs.lab(call.Call(tmp_path, [], {}))
    assert mine.read_text() == "mine"


def test_the_kernel_is_this_python_and_not_one_of_the_users(tmp_path):
    planted = tmp_path / ".local/share/jupyter/kernels/python3"
    planted.mkdir(parents=True)
    kernel = {"argv": ["/theirs/python", "-m", "x"], "display_name": "theirs", "language": "python"}
    (planted / "kernel.json").write_text(json.dumps(kernel))
    theirs = {"HOME": str(tmp_path), "JUPYTER_PATH": str(tmp_path / ".local/share/jupyter")}
    env = call.child_environment(ROOT, {**os.environ, **theirs})
    ask = "from jupyter_client.manager import KernelManager; print(KernelManager(kernel_name='python3').format_kernel_cmd()[0])"
    done = ran([sys.executable, "-c", ask], env=env)
    assert done.stdout.strip() == sys.executable


def test_tests_end_with_what_did_not_run_and_why(tmp_path):
    checkout = lay(tmp_path, ("run_tests.py",))
    (checkout.root / "tests").mkdir()
    (checkout.root / "notebooks").mkdir()
    (checkout.root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["slow: long"]\n'
    )
    (checkout.root / "tests/test_a.py").write_text(
        "import pytest\n\ndef test_runs():\n    pass\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_gpu(n):\n"
        "    pytest.skip('no GPU on this machine')\n\n@pytest.mark.slow\ndef test_long():\n    pass\n"
    )
    env = checkout.env(PYTHONPATH=str(checkout.root))
    done = ran([sys.executable, "env/run_tests.py", "-n", "1"], cwd=checkout.root, env=env)
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "not run because" in line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "   2  no GPU on this machine" in lines[at + 1 :]
    assert any("make test-all" in line for line in lines[at + 1 :])
    assert "1 passed, 2 skipped" in lines[-1] and "   1  left out by -m or -k" in done.stdout


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {"-m", "not slow", "tests", "notebooks"}),
        (["--all"], {"tests", "notebooks"}),
        (["-k", "x"], {"-k", "x", "tests"}),
        (["tests/test_bootstrap.py::test_x"], {"tests/test_bootstrap.py::test_x", "not slow"}),
    ],
)
def test_what_pytest_is_given(words, options, monkeypatch):
    import run_tests

    given = []
    monkeypatch.setattr(pytest, "main", lambda argv: 0 if given.extend(argv) else 0)  # type: ignore[func-returns-value]
    assert run_tests.main(words) == 0
    assert {*options, "--nbval-lax"} <= set(given)
    assert ("not slow" in given) == ("--all" not in words)
    assert ("tests" in given) == ("::" not in "".join(words))

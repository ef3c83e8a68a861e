"""A capture ends, whatever the box does: hangs, refusals, faults and interruptions each cost what they touch, and are named."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from other_user import as_nobody, open_folder  # noqa: F401 - a fixture
from pythons import starts
from setup import offline
from trees import link, make_tree, write

from helpers.ground import child
from helpers.ground.child.bounded import LAST_BYTES
from helpers.look import access, capture, collection, commands, files, hanging, kernel_log_capture
from helpers.look.bundle import BundleWriter, open_bundle
from helpers.look.capture import Options, main, measure
from helpers.look.collection import Collection
from helpers.look.processes import processes

ROOT = Path(__file__).resolve().parents[1]
SHELL = "/bin/sh"
SECRET = "planted-secret"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("tree"), processes=20, device_files=8, amd=2, nvidia=1)


def program(folder, name, text):
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def dies(pid):
    """Whether a process that was sent SIGKILL is gone, or waits for its new parent to reap it, within a minute."""
    for _ in range(1200):
        if not child.process_of(pid).running:
            return True
        time.sleep(0.05)
    return False


# Commands


def test_a_command_gives_its_text_its_words_on_stderr_and_its_exit():
    got = commands.run([SHELL, "-c", "echo out; echo err >&2; echo $LC_ALL; exit 3"])
    assert got.text == b"out\nC\n--- stderr ---\nerr\n"
    assert (got.status, got.exit, got.why) == ("ok", 3, "")
    assert commands.run([SHELL, "-c", "echo err >&2"]).text == b"--- stderr ---\nerr\n"
    assert commands.run([SHELL, "-c", "printf out"]).text == b"out"


def test_a_program_that_is_missing_and_one_that_may_not_run_differ(tmp_path, monkeypatch):
    (tmp_path / "closed-tool").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commands.run(["no-such-tool"]).status == "not_available"
    assert commands.run(["closed-tool"]).status == "not_allowed"
    (tmp_path / "broken-tool").write_text("no program at all")
    (tmp_path / "broken-tool").chmod(0o755)
    broken = commands.run(["broken-tool"])
    assert broken.status == "not_available" and "Exec format error" in broken.why


def test_a_tool_beside_the_current_folder_is_not_run(tmp_path, monkeypatch):
    program(tmp_path, "rocm-smi-planted", "echo planted")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}/bin")
    assert commands.run(["rocm-smi-planted"]).status == "not_available"


def test_stdin_is_closed():
    assert commands.run(["cat"]).status == "ok"


@pytest.mark.parametrize(
    "script",
    [
        "echo begun; sleep 60 & echo $!; wait",
        "trap '' TERM INT HUP; echo begun; sleep 60 & echo $!; wait",
        "echo begun; sleep 60 & echo $!; exec >&- 2>&-; wait",
    ],
)
def test_a_hanging_command_costs_its_limit_and_dies_with_its_children(script):
    got = commands.run([SHELL, "-c", script], 0.3)
    assert (got.status, got.exit, got.why) == ("timeout", None, "stopped after 0.3 s")
    begun, child = got.stdout.split()
    assert begun == b"begun", "what it printed is kept"
    assert dies(int(child))


def test_a_command_that_leaves_children_behind_ends_with_its_leader():
    got = commands.run([SHELL, "-c", "sleep 60 & echo $!"], 30)
    assert (got.status, got.exit) == ("ok", 0) and got.seconds < 20
    assert dies(int(got.stdout))


def test_a_child_that_left_the_group_and_holds_the_pipe_is_not_waited_for():
    code = "import os, sys, time\nif os.fork():\n    print('said'); sys.stdout.flush(); os._exit(0)\nos.setsid(); time.sleep(4)"
    got = commands.run([sys.executable, "-c", code], 30)
    assert (got.stdout, got.status) == (b"said\n", "ok") and got.seconds < 4


def test_a_flood_is_cut_and_stopped():
    got = commands.run([SHELL, "-c", "exec yes"], 20)
    assert (got.status, len(got.stdout)) == ("truncated", commands.COMMAND_LIMIT_BYTES)
    assert got.why == "stopped after 4096 KiB of output"
    fifty = commands.run(["head", "-c", str(50 << 20), "/dev/zero"], 20, 1 << 20)
    assert (fifty.status, len(fifty.stdout)) == ("truncated", 1 << 20)
    errors = commands.run([SHELL, "-c", "head -c 5000000 /dev/zero >&2; echo done"], 20)
    assert (errors.status, errors.stdout) == ("ok", b"done\n")
    assert len(errors.stderr) == LAST_BYTES


def test_a_command_killed_by_a_signal_and_one_that_speaks_no_utf8():
    killed = commands.run([SHELL, "-c", "echo last words; kill -SEGV $$"])
    assert (killed.stdout, killed.status, killed.exit) == (b"last words\n", "ok", None)
    assert killed.why == "killed by SIGSEGV"
    assert commands.run(["printf", r"\377\376"]).text == b"\xff\xfe"


def test_commands_leave_no_descriptor_and_no_zombie():
    before = set(os.listdir("/proc/self/fd"))
    children = set(psutil.Process().children())
    for script in ("exit 0", "sleep 60", "exec yes"):
        commands.run([SHELL, "-c", script], 0.2, 1 << 16)
    assert len(set(os.listdir("/proc/self/fd"))) == len(before)
    assert set(psutil.Process().children()) <= children


# Reads that may hang


def odd_read(key):
    if key.startswith("hang"):
        time.sleep(60)
    if key.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if key.startswith("raise"):
        raise ValueError("odd")
    return key * (200_000 if key == "big" else 1), b"\xff", [1, None]


def test_each_read_gives_its_answer_or_its_reason_in_order():
    keys = ["a", "hang", "b", "die", "raise", "big", "c"]
    got = list(hanging.read_each(keys, odd_read, 0.3))
    assert [key for key, _, _ in got] == keys
    assert {key: why for key, _, why in got if why} == {
        "hang": "hung for 0.3 s",
        "die": "the process that read it died",
        "raise": "ValueError: odd",
    }
    assert got[0][1] == ("a", b"\xff", [1, None]) and len(got[5][1][0]) == 600_000


def test_reading_goes_on_elsewhere_where_one_group_hangs_and_ends_where_all_do():
    keys = ["hang/1", "hang/2", "hang/3", "a/1", "hang/4", "a/2"]
    got = {
        key: why for key, _, why in hanging.read_each(keys, odd_read, 0.1, group=os.path.dirname)
    }
    hung = "hung for 0.1 s"
    skipped = "not read: others of its kind hung or died before it"
    assert [got[key] for key in keys] == [hung, hung, skipped, "", skipped, ""]
    everywhere = [
        why for _, _, why in hanging.read_each([f"hang{n}" for n in range(50)], odd_read, 0.1)
    ]
    most = hanging.LOST_LIMIT
    assert everywhere == [hung] * most + [skipped] * (50 - most)


def test_a_reader_that_is_left_early_leaves_no_child():
    children = set(psutil.Process().children())
    stream = hanging.read_each(["a", "hang"], odd_read, 30)
    assert next(stream)[0] == "a"
    del stream
    assert set(psutil.Process().children()) <= children


def test_nothing_to_read_forks_nothing():
    assert list(hanging.read_each([], odd_read)) == []


# Files


def test_files_are_found_in_natural_order_and_a_pattern_without_a_match_is_named(tmp_path):
    for number in (10, 2, 1):
        write(tmp_path, f"/sys/card{number}/used", str(number))
    write(tmp_path, "/sys/card3/other", "")
    write(tmp_path, "/sys/.card4/used", "")
    found = list(files.find(str(tmp_path), "/sys/*/used"))
    assert [f.source for f in found] == ["/sys/card1/used", "/sys/card2/used", "/sys/card10/used"]
    assert list(files.find(str(tmp_path), "/sys/*/absent")) == [
        files.FoundPath("/sys/*/absent", "not_available", "no such path")
    ]
    assert list(files.find(str(tmp_path), "/nowhere/x*"))[0].why == "no such path"


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        names = ("pipe", "folder", "loop", "broken", "socket", "absent")
        whys = {name: files.read(str(tmp_path), "/" + name) for name in names}
    assert {name: got[2] for name, got in whys.items()} == {
        "pipe": "a pipe, not a regular file",
        "folder": "a folder, not a regular file",
        "loop": "a loop of links",
        "broken": "no such file",
        "socket": "a socket, not a regular file",
        "absent": "no such file",
    }
    assert {got[:2] for got in whys.values()} == {(None, "not_available")}
    assert files.read("/", "/dev/zero")[2] == "a device, not a regular file"


def test_a_read_that_fails_in_the_kernel_is_not_available_with_its_error():
    content, status, why = files.read("/", "/proc/self/mem")
    assert (content, status, why) == (None, "not_available", "Input/output error (EIO)")


def test_a_link_out_of_the_tree_is_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    write(tmp_path, "/root/proc/inside", "inside")
    link(tmp_path, "/root/etc/absolute", str(tmp_path / "outside/secret"))
    link(tmp_path, "/root/etc/relative", "../../outside/secret")
    link(tmp_path, "/root/sys/class", "../../outside")
    link(tmp_path, "/root/etc/within", "../proc/inside")
    root = str(tmp_path / "root")
    for source in ("/etc/absolute", "/etc/relative", "/sys/class/secret"):
        assert files.read(root, source) == (None, "not_available", "a link leads outside --root")
    assert [f.status for f in files.find(root, "/sys/class/*")] == ["not_available"]
    assert files.read(root, "/etc/within")[0] == b"inside"
    assert files.read(root + "/", "/etc/within")[0] == b"inside"


def test_a_long_file_is_cut_and_says_so(tmp_path):
    (tmp_path / "long").write_bytes(bytes(3 << 20))
    content, status, why = files.read(str(tmp_path), "/long")
    assert (len(content or b""), status, why) == (1 << 20, "truncated", "cut after 1024 KiB")
    (tmp_path / "exact").write_bytes(bytes(1 << 20))
    assert files.read(str(tmp_path), "/exact")[1] == "ok"


def test_a_folder_with_too_many_files_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MATCH_LIMIT", 3)
    for number in range(5):
        (tmp_path / f"f{number}").touch()
    found = list(files.find(str(tmp_path), "/f*"))
    assert [f.status for f in found] == ["ok"] * 3 + ["not_available"]
    assert "2 further matches" in found[-1].why


def test_a_folder_that_may_not_be_listed_is_refused_not_empty(open_folder: Path) -> None:  # noqa: F811
    write(open_folder, "/debug/dri/0/vram", "1")
    write(open_folder, "/open/0/vram", "1")
    write(open_folder, "/open/1/vram", "1")
    (open_folder / "debug").chmod(0o700)
    (open_folder / "open/1").chmod(0o700)
    (open_folder / "open/0/vram").chmod(0o600)
    code = (
        "import json; from helpers.look import files; root = sys.argv[1]\n"
        "found = [[f.source, f.status] for p in ('/debug/dri/*/vram', '/open/*/vram') for f in files.find(root, p)]\n"
        "print(json.dumps([found, files.read(root, '/open/0/vram')[1:]]))"
    )
    found, read = as_nobody(code, open_folder)
    refused = [source for source, status in found if status == "not_allowed"]
    assert refused == ["/debug/dri/*/vram", "/open/1/vram"] and len(found) == 3
    assert read == ["not_allowed", "Permission denied (EACCES)"]


# Tables


def fill(rows, name="odd", unless=""):
    kept = Collection(BundleWriter("b", "live", "0", "now"))
    kept.table(name, lambda: rows, unless)
    return kept.writer.bundle().read(name)


def test_a_bundle_that_is_full_names_what_it_left_out(monkeypatch):
    monkeypatch.setattr(collection, "COLLECTION_LIMIT_BYTES", 100)
    monkeypatch.setattr(collection, "MEMBER_LIMIT_BYTES", 90)
    kept = Collection(BundleWriter("b", "live", "0", "now"))
    for number, size in enumerate((60, 60, 91)):
        kept.add(f"/f{number}", bytes(size), "ok")
    assert kept.counts() == {"not_available": 2, "ok": 1}
    assert "left out" in kept.writer.bundle().read("/f1").why


def test_a_producer_that_hangs_dies_or_fails_costs_its_table(monkeypatch):
    found = {
        word: fill(capture.in_child(partial(odd_read, word), 0.3))
        for word in ("hang", "die", "raise")
    }
    assert {word: (text.status, text.why) for word, text in found.items()} == {
        "hang": ("timeout", "hung for 0.3 s"),
        "die": ("not_available", "the process that read it died"),
        "raise": ("not_available", "ValueError: odd"),
    }


def test_a_table_whose_only_row_says_why_says_so_itself():
    made = fill(iter([{"status": "not_available", "why": "no torch"}]), "torch")
    assert (made.status, made.why) == ("not_available", "no torch")
    gone = fill(iter([{"status": "not_available", "why": "gone", "pid": 1}]), "processes")
    assert gone.ok and gone.text.count("\n") == 1
    assert fill(iter(()), unless="no such file").why == "no such file"
    assert fill(iter(())).ok, "nothing there, and that was seen"


# The whole


def test_a_tree_is_captured_whole(tree, tmp_path, capsys):
    assert main(["--root", str(tree.root), "--out", str(tmp_path / "b.tar.gz")]) == 0
    said = capsys.readouterr()
    assert said.err == "" and str(tmp_path / "b.tar.gz") in said.out
    assert len(said.out.splitlines()) < 12
    bundle = open_bundle(tmp_path / "b.tar.gz")
    assert bundle.kind == "recorded" and bundle.box.startswith("box-")
    assert bundle.read("/sys/class/drm/card1/device/mem_info_vram_total").text == f"{20 << 30}\n"
    assert bundle.sources("/sys/class/kfd/kfd/proc/*/vram_*") == [
        f"/sys/class/kfd/kfd/proc/{pid}/vram_{41_000 + n}"
        for n, pid in enumerate(sorted(tree.held))
    ]
    assert len(processes(bundle)) == 20 and len(bundle.table("device_files")) == 8
    assert {row["pci"] for row in bundle.table("pci_devices")} >= {*tree.amd, *tree.nvidia}
    own = "identity access environment limits torch nvml dmesg".split()
    for text in map(bundle.read, [*own, "nvidia-smi -q -x"]):
        assert text.status == "not_available" and "--root given" in text.why, text.source
    assert str(tree.root) not in json.dumps([item.source for item in bundle.items])


def test_two_captures_of_one_tree_are_the_same_but_for_the_clock(tree):
    def read():
        items = capture.capture(Options(str(tree.root))).items
        return [(i.id, i.status, i.why, i.sha256) for i in items if i.source != "host"]

    assert read() == read()


def test_a_hostile_tree_hangs_nothing_and_leads_nowhere(tmp_path):
    os.makedirs(tmp_path / "t/proc/7/fd")
    os.makedirs(tmp_path / "t/sys/class/drm/card0/device")
    pools = "sys/class/drm/card0/device/mem_info_vram_total"
    for place in ("proc/meminfo", "proc/7/status", pools):
        os.mkfifo(tmp_path / "t" / place)
    link(tmp_path, "/t/sys/class/drm/card1", "card1")
    link(tmp_path, "/t/sys/class/drm/card2", "/sys")
    link(tmp_path, "/t/etc/os-release", "/etc/os-release")
    link(tmp_path, "/t/proc/cmdline", "/proc/cmdline")
    link(tmp_path, "/t/proc/7/fd/3", "/dev/kfd")
    bundle = capture.capture(Options(str(tmp_path / "t")))
    assert bundle.read("/proc/meminfo").why == "a pipe, not a regular file"
    for source in ("/etc/os-release", "/proc/cmdline"):
        assert bundle.read(source).why == "a link leads outside --root"
    assert bundle.table("processes")[0]["status"] == "not_available"


def test_this_box_is_captured_with_torch_asked_last(monkeypatch, tmp_path):
    for name, value in (("HF_TOKEN", SECRET), ("MIOPEN_DB_TOKEN", SECRET), ("HSA_XNACK", "0")):
        monkeypatch.setenv(name, value)
    answer = 'echo chatter; echo \'{"status": "ok", "torch": "9.9"}\'\n'
    python = program(tmp_path, "python-with-torch", answer)
    taken = measure(Options(torch_python=str(python)))
    assert taken.faults == [] and not taken.interrupted
    bundle = taken.writer.bundle()
    assert bundle.items[-1].source == "torch" and bundle.table("torch")[0]["torch"] == "9.9"
    sources = [item.source for item in bundle.items]
    order = [sources.index(name) for name in ("processes", "access", "nvidia-smi -q -x", "nvml")]
    assert order == sorted(order) and len(sources) == len(set(sources))
    assert bundle.kind == "live" and os.uname().nodename not in bundle.box
    assert {"name": "HSA_XNACK", "value": "0"} in bundle.table("environment")
    assert SECRET.encode() not in b"".join(bundle.contents.values())


def test_no_program_runs_and_no_torch_is_asked_where_that_was_wished(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a program was run")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    taken = measure(Options(commands=False, torch=False))
    assert taken.faults == []
    whys = [taken.writer.bundle().read(name).why for name in ("torch", "nvml", "dmesg")]
    assert whys == ["--no-torch given", *["--no-commands given"] * 2]


def test_a_device_node_is_never_opened_by_the_capturing_process(tmp_path):
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\nfrom helpers.look import access, capture\n"
        "access.NODES = ('/dev/full',)\nopened, parent = [], os.getpid()\n"
        "def note(event, args):\n    if event == 'open' and os.getpid() == parent: opened.append(str(args[0]))\n"
        "sys.addaudithook(note)\n"
        "row = capture.capture(capture.Options(torch=False)).table('access')[0]\n"
        "assert row['status'] == 'ok', row\n"
        "assert '/dev/full' not in opened and '/dev/null' in opened, opened\n"
    )
    subprocess.run([sys.executable, "-c", code, str(ROOT)], check=True)


def test_a_tool_that_hangs_is_not_asked_for_ever(tmp_path, monkeypatch):
    program(tmp_path, "rocm-smi", "echo begun; sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(commands, "COMMAND_LIMIT_S", 0.2)
    taken = measure(Options(torch=False))
    found = [item for item in taken.items if item.source.startswith("rocm-smi")]
    assert [item.status for item in found][:3] == ["timeout", "timeout", "not_available"]
    assert found[2].why == "not run: rocm-smi hung 2 times before"
    assert taken.writer.bundle().read(found[0].source).text == "begun\n"


def test_a_fault_in_one_reader_is_named_and_costs_no_other(monkeypatch, tmp_path, capsys):
    def broken(limit):
        raise TypeError("odd log")

    monkeypatch.setattr(kernel_log_capture, "collect", broken)
    assert main(["--no-torch", "--out", str(tmp_path / "b")]) == 0
    assert "kernel log: TypeError: odd log" in capsys.readouterr().out
    bundle = open_bundle(tmp_path / "b")
    assert bundle.read("processes").ok and bundle.read("nvml").why != "not captured"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_capture_is_written_with_what_it_has(tmp_path, number):
    program(tmp_path, "rocm-smi", f"echo $$ > {tmp_path}/began; sleep 60")
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    words = f"-m helpers capture --no-torch --out {tmp_path}/b.tar.gz --json".split()
    pipe = {"stdout": subprocess.PIPE, "text": True}
    running = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, **pipe)
    try:
        while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text().strip():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(number)
        out, _ = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 130 and json.loads(out)["interrupted"] is True
    assert dies(int((tmp_path / "began").read_text()))
    bundle = open_bundle(tmp_path / "b.tar.gz")
    assert bundle.read("processes").ok
    for name in ("nvml", "torch", "nvidia-smi -q -x"):
        assert bundle.read(name).why == "not captured"


@pytest.mark.parametrize(
    "arguments",
    [
        *("--nonsense", "extra", "--root /no/such/folder", "--root /etc/passwd", "--box ../x"),
        *("--torch-python /no/such/python", "--ou x", "--out b.zip", "--out"),
        *("--out /no/such/folder/b.tar.gz", "--out /dev/null", "--out /dev/null --force"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(capture, "measure", lambda *_: pytest.fail("it measured before it refused"))
    assert main(arguments.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and said.err.startswith("capture: ")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_replaced_only_by_force(tree, tmp_path, capsys):
    out = tmp_path / "b"
    arguments = ["--root", str(tree.root), "--out", str(out), "--json"]
    assert main(arguments) == 0 and json.loads(capsys.readouterr().out)["counts"]["ok"] > 10
    assert main(arguments) == 2 and "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert open_bundle(out).read("/proc/cmdline").ok


def test_without_out_a_checkout_gets_it_in_outputs_and_others_here(tree, tmp_path, monkeypatch):
    (tmp_path / "checkout").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for place, folder in (("checkout", "checkout/outputs/captures"), ("none", "here")):
        monkeypatch.setattr(capture, "CHECKOUT", tmp_path / place)
        monkeypatch.setattr(capture, "OUTPUTS", tmp_path / place / "outputs")
        assert main(["--root", str(tree.root), "--box", "mine"]) == 0
        (written,) = (tmp_path / folder).iterdir()
        assert re.fullmatch(r"mine-2\S+Z\.tar\.gz", written.name)
        assert open_bundle(written).box == "mine"


def test_torch_is_looked_for_where_it_was_told_or_recorded(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(capture.framework, "collect", lambda python, *_: asked.append(python) or [])
    monkeypatch.setattr(capture.framework, "CHECKOUT", tmp_path)
    python = str(program(tmp_path, "python-of-torch", ""))
    (tmp_path / ".venv").mkdir()
    none = '{"torch_python": null}', '{"torch_python": "/gone"}'
    for kept in ("", "{torn", "[]", *none, json.dumps({"torch_python": python})):
        (tmp_path / ".venv/casebook.json").write_text(kept)
        capture.capture(Options(commands=False))
    capture.capture(Options(commands=False, torch_python="/told/python"))
    assert asked[:5] == [asked[0]] * 5 and "python" in asked[0]
    assert asked[5:] == [python, "/told/python"]


def test_every_row_of_the_sources_names_its_reader_and_something_to_look_at():
    rows = json.loads(Path(capture.__file__).with_name("sources.json").read_text())
    names = [name for kind in ("files", "command") for name in files.sources(kind)]
    assert len(set(names)) == len(names) and not re.search("[{}]", "".join(names))
    for row in rows:
        (kind,) = {"files", "command"} & row.keys()
        assert Path(capture.__file__).with_name(row["reader"] + ".py").is_file()
        assert files.sources(kind, row["reader"]) and row.keys() <= {kind, "reader", "why"}
        assert kind == "command" or row[kind].startswith("/")


def test_the_home_folder_is_not_kept_in_the_torch_row(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    row = {"status": "ok", "python": "/home/somebody/venv/bin/python"}
    monkeypatch.setattr(capture.framework, "collect", lambda *_: [row])
    (kept,) = capture.capture(Options(commands=False)).table("torch")
    assert kept["python"] == "~/venv/bin/python"


OLDEST_AND_NEWEST = ("python3.8", "python3.13", "python3.14")
BETWEEN = (pytest.param(f"python3.{minor}", marks=pytest.mark.slow) for minor in range(9, 13))


@pytest.mark.parametrize("python", [*OLDEST_AND_NEWEST, *BETWEEN])
def test_every_python_captures_from_a_bare_checkout_and_from_one_file(python, tree, tmp_path):
    place = starts(python)
    if not place:
        pytest.skip(f"no {python} here")
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    packed = tmp_path / "capture.pyz"
    offline.pack(ROOT / "helpers", packed)

    def run(cwd, words, *options):
        argv = [place, "-W", "error", *words, *options]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=cwd)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
        return ran.stdout

    root = ["--root", str(tree.root)]
    run(ROOT, ["-m", "helpers", "capture"], *root, "--out", str(tmp_path / "checkout.tar.gz"))
    run(tmp_path, [str(packed)], *root, "--out", str(tmp_path / "file.tar.gz"))
    assert len(processes(open_bundle(tmp_path / "file.tar.gz"))) == 20
    live = str(tmp_path / "live")
    said = run(tmp_path, [str(packed)], "--no-torch", "--out", live, "--json")
    assert json.loads(said)["faults"] == [] and access.identity(open_bundle(live))

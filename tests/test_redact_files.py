"""Bundles and folders without what must not leave: names, contents, manifest; what cannot be read for sure is refused."""

import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest
from redact_plants import known_besides, png, secrets, told, told_again, tree

from helpers.look import guard
from helpers.look.archive import BundleError, read_files
from helpers.look.bundle import BundleWriter, open_bundle
from helpers.tell.redact import RedactError, redact_bundle, redact_files, second_scan
from helpers.tell.redact_box import known_values, learn_live
from helpers.tell.redact_known import COMMON, TABLE, Known
from helpers.tell.redact_patterns import DETECTORS
from helpers.tell.redact_text import learn, redact_text

MADE = secrets(5)
BOXES = Path(__file__).parents[1] / "env" / "boxes"
UNIQUE = ("host", "nvidia-smi -q -x", "rocm-smi --showbus --showproductname --showuniqueid --json")


@pytest.fixture
def known(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    box = Known()
    learn_live(box, root, tree(root, MADE))
    learn(known_besides(MADE), box)
    return box


@pytest.fixture
def folder(tmp_path):
    """A bundle with every planted secret in some file, in a file's name and in the reason of an item."""
    writer = BundleWriter("a-box", "live", "0.1.0", "2026-01-01T00:00:00Z")
    for number, (kind, values) in enumerate(MADE.items()):
        text = "\n".join(told(kind, value) for value in values)
        writer.add("file", f"/proc/{number}/{kind}", text + "\nMemTotal: 131072000 kB\n")
    for host in MADE["host"]:
        writer.add("file", f"/sys/fs/cgroup/{host}/memory.max", "max\n")
        why = f"no route to {host}"
        writer.add("command", f"ssh {host} uptime", None, status="not_available", why=why)
    stranger = ["/usr/bin/prog", "--quietly=please", "vexofen.txt"]
    rows = [
        {"pid": 7, "name": "prog", "uid": 4000, "args": stranger},
        {"pid": 8, "name": "python3", "uid": 1000, "args": ["python3", "train.py"]},
    ]
    groups = [{"gid": 1000, "name": "vexolum"}, {"gid": 44, "name": "video"}]
    for name, content in (
        ("processes", "".join(json.dumps(row) + "\n" for row in rows)),
        ("identity", json.dumps({"uid": 1000, "groups": groups})),
        ("/var/log/who", "vexolum did it\n"),
        ("/etc/latin", "caf\xe9 vexolum\n".encode("latin-1")),
        ("/etc/wide", "vexolum wide\n".encode("utf-16")),
        ("/proc/7/environ", "A=1\0USER=vexolum\0"),
    ):
        writer.add("file", name, content)
    return writer.write(tmp_path / "in")


@pytest.mark.parametrize("name", ["out", "out.tar.gz"])
def test_no_planted_secret_survives_in_a_bundle_and_it_still_opens(known, folder, tmp_path, name):
    replaced = redact_bundle(folder, tmp_path / name, known)
    clean = open_bundle(tmp_path / name)
    files = read_files(tmp_path / name)
    words = {file: raw.decode("latin-1") for file, raw in files.items()}
    seen = told_again([list(words.items()), repr(replaced)]).lower()
    assert [value for values in MADE.values() for value in values if value.lower() in seen] == []
    everything = clean.read("processes").text + str(words)
    assert "vexo" not in everything and "quietly" not in everything
    assert "train.py" in everything and "131072000" in everything
    assert "video" in clean.read("identity").text
    assert "v\0e\0x\0o" not in words["raw/etc/wide"]
    user = clean.read("/var/log/who").text.split()[0]
    assert user.startswith("user-") and user in words["raw/etc/latin"]
    assert len({i.source for i in clean.items}) == len(clean.items)
    host = redact_text(MADE["host"][4], known)
    assert host in clean.read("/proc/0/host").text.split()
    assert f"ssh {host} uptime" in [item.source for item in clean.items]


@pytest.mark.parametrize("box", sorted(path.parent.name for path in BOXES.glob("*/manifest.json")))
def test_a_recorded_box_keeps_all_that_is_told_of_it(tmp_path, box):
    original = open_bundle(BOXES / box)
    redact_bundle(BOXES / box, tmp_path / "out", known_values(original))
    clean = open_bundle(tmp_path / "out")
    for i, j in zip(original.items, clean.items, strict=True):
        same = (i.source, original.read(i.source).text) == (j.source, clean.read(j.source).text)
        assert same or i.source in UNIQUE


def test_the_same_bundle_twice_is_the_same(known, folder, tmp_path):
    redact_bundle(folder, tmp_path / "out", known)
    redact_bundle(tmp_path / "out", tmp_path / "twice", known)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "twice")


def test_fields_of_a_manifest_stay_whatever_a_host_is_called(tmp_path):
    writer = BundleWriter("a-box", "live", "0.1.0", "2026-01-01T00:00:00Z")
    writer.add("file", "/etc/hostname", "seconds\n")
    known = Known()
    known.add("host", "seconds")
    redact_bundle(writer.write(tmp_path / "in"), tmp_path / "out", known)
    assert open_bundle(tmp_path / "out").read("/etc/hostname").text == "host-1\n"


def database(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute("create table a (b text)")
    return (tmp_path / "a.db").read_bytes()


def test_binary_members_are_refused_by_name_in_one_line_unless_told(known, tmp_path):
    binary = {
        "study.db": database(tmp_path),
        "core.bin": bytes(range(256)) * 9,
        "x.gz": b"\x1f\x8b\x08\0abc",
        "snapshot.pickle": b"\x80\x04\x95\x02\0\0\0\0\0\0\0}.",
        "photo.jpg": b"\xff\xd8\xff\xe1" + bytes(range(99)),
        "trace.parquet": b"PAR1\0\0PAR1",
    }
    files = {"a.txt": b"hello", **binary}
    with pytest.raises(RedactError) as error:
        redact_files(files, known)
    assert all(name in str(error.value) for name in ("study.db (SQLite)", "core.bin", "x.gz"))
    assert "\n" not in str(error.value) and "a.txt" not in str(error.value)
    clean, replaced = redact_files(files, known, allow_binary=True)
    assert clean == files and len(replaced.notes) == 6


def test_nothing_is_written_where_a_member_is_refused_and_links_are(known, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "core.bin").write_bytes(bytes(range(256)))
    with pytest.raises(RedactError):
        redact_bundle(tmp_path / "in", tmp_path / "out.tar.gz", known)
    (tmp_path / "in" / "core.bin").unlink()
    (tmp_path / "in" / "link").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="link"):
        redact_bundle(tmp_path / "in", tmp_path / "out.tar.gz", known)
    assert not (tmp_path / "out.tar.gz").exists()


def test_pictures_lose_their_words_and_keep_their_pixels(known):
    words = MADE["email"][0]
    clean, replaced = redact_files({"a.png": png(words)}, known)
    assert words.encode() not in clean["a.png"] and len(replaced.notes) == 1
    assert b"IDAT" in clean["a.png"]
    with pytest.raises(RedactError):
        redact_files({"a.png": png(words)[:60]}, known)


def test_a_file_reads_the_same_and_is_scanned_the_same_however_many_processes_look(monkeypatch):
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": [f"{row.example}\n", f"as {row.kind}"]}
        for row in DETECTORS
    ]
    cells = [{"cell_type": "code", "metadata": {}, "source": "", "outputs": outputs}]
    files = {"n.ipynb": json.dumps({"metadata": {}, "cells": cells}).encode(), "a.log": b"as root"}
    texts = {f"{at}.log": row.example for at, row in enumerate(DETECTORS)}
    forks = []
    fork = os.fork
    monkeypatch.setattr(guard.os, "fork", lambda: forks.append(0) or fork())
    monkeypatch.setattr(guard.threading, "active_count", lambda: 1)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(guard, "SHARE_CHARACTERS", 100)
    seen = []
    for count in (1, 3):
        monkeypatch.setattr(guard.os, "sched_getaffinity", lambda _, n=count: set(range(n)))
        new, replaced = redact_files(files, Known())
        finds = second_scan(texts)
        told = [(find, find.value, find.read) for find in finds]
        seen.append((new, list(replaced.counts.items()), replaced.notes, told))
        assert len(forks) == 2 * (count - 1)
    assert seen[0] == seen[1] and len(seen[0][1]) > 50 and seen[0][3]


def test_files_of_a_run_share_their_names(known):
    user = MADE["user"][0]
    record = {"verdict": {"summary": f"/home/{user}"}, "bytes": 1 << 40}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"who": user}, "cells": []}
    run = {
        "run.json": json.dumps(record, indent=1).encode(),
        f"{user}/kernel.stderr": f"by {user}\n".encode(),
        "notebook.ipynb": json.dumps(notebook).encode(),
    }
    clean, _ = redact_files(run, known)
    name = redact_text(user, known)
    assert set(clean) == {"run.json", f"{name}/kernel.stderr", "notebook.ipynb"}
    both = {f"{user}.txt": b"1", f"{user.upper()}.txt": b"2"}
    assert redact_files(both, known)[0] == {f"{name}.txt": b"1", f"{name}.txt~2": b"2"}
    record["verdict"]["summary"] = f"/home/{name}"
    assert json.loads(clean["run.json"]) == record
    assert json.loads(clean["notebook.ipynb"])["metadata"]["who"] == name


SHAPES = {
    "mac": "3c:12:34:56:78:9a",
    "guid": "9803:9b03:0012:3456",
    "uuid": "01234567-89ab-cdef-0123-456789abcdef",
}


@pytest.mark.parametrize(("name", "kind"), TABLE["one_value"].items())
def test_a_file_of_one_value_tells_it_by_its_name_and_a_file_without_one_nothing(name, kind):
    value = SHAPES.get(kind, "qwixfen471")
    files = {f"raw/sys/{name}": f"{value}\n".encode(), "note": f"of {value} here".encode()}
    clean, _ = redact_files(files, Known())
    assert clean["note"].decode() == f"of {kind}-1 here"
    empty = ["00:00:00:00:00:00"] if kind == "mac" else ["N/A", "Default string", "0000000000"]
    for nothing in [*empty, "two\nlines here"]:
        files = {f"raw/sys/{name}": nothing.encode(), "note": nothing.encode()}
        assert redact_files(files, Known())[0]["note"].decode() == nothing


HOME_FILES = {
    "etc/passwd": "vexo:x:1000:1000:Qwix Fen,,:/data/people/vexo2:/bin/sh\nx:x:999:1:Old Kip:/y:/z\n",
    "data/people/vexo2/.gitconfig": "[user]\n\tname = Jor Lumvek\n\temail = jor@fen\n",
    "data/people/vexo2/.ssh/id.pub": "restrict ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA x\n",
    "sys/block/sda/device/serial": "PKX0471123\n",
    "sys/class/infiniband/mlx/node_guid": "9803:9b03:0012:3456\n",
    "etc/resolv.conf": "search vexo.example\n",
    "etc/fstab": "nas-fen:/x /y nfs4 rw 0 0\n",
    "etc/NetworkManager/system-connections/Kip Upstairs.nmconnection": "psk=hunterly9\n",
    "proc/7/cmdline": "/usr/bin/prog\0--vexed\0secret-of-wyz\0",
}


def test_a_live_box_tells_its_people_keys_disks_and_nets_but_no_password(tmp_path):
    for name, text in HOME_FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    known = Known()
    environment = {"JOB_TOKEN": "abcdefghij12", "HF_TOKEN": "short", "A_KEY": "/etc"}
    learn_live(known, tmp_path, {**environment, "USER": "pkowal", "HOME": "/cluster/of/pkowalski"})
    values = [
        *("vexo", "Qwix Fen", "/data/people/vexo2", "Jor Lumvek", "jor@fen"),
        *("AAAAC3NzaC1lZDI1NTE5AAAA", "PKX0471123", "9803:9b03:0012:3456", "vexo.example"),
        *("nas-fen", "Kip Upstairs", "secret-of-wyz", "abcdefghij12", "pkowal", "pkowalski"),
    ]
    for value in values:
        assert value not in redact_text(f"of {value} here", known), value
    stay = ["Old Kip", "--vex", "short", "/etc"]
    for value in stay:
        assert redact_text(f"of {value} here", known) == f"of {value} here"
    assert known.of_word("hunterly9") is None


def test_this_box_tells_its_own_names():
    import socket

    box = known_values("live")
    host = socket.gethostname()
    assert repr(box).startswith("Known(") and host not in repr(box)
    assert redact_text(f"at {host}:", box) != f"at {host}:" or len(host) < 3 or host in COMMON

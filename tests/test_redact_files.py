"""Bundles and folders without what must not leave: names, contents, manifest; what cannot be read for sure is refused."""

import io
import json
import pickle
import sqlite3
from pathlib import Path

import pytest
from redact_plants import jpeg, known_besides, png, secrets, told, told_again, tree

from helpers.look.archive import BundleError, read_files
from helpers.look.bundle import BundleWriter, open_bundle
from helpers.tell.redact import (
    Known,
    RedactError,
    known_values,
    learn,
    learn_live,
    redact_bundle,
    redact_files,
    redact_text,
)

MADE = secrets(5)
BOXES = Path(__file__).parents[1] / "env" / "boxes"


@pytest.fixture
def known(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    box = Known()
    learn_live(box, root, tree(root, MADE))
    learn(known_besides(MADE), box)
    return box


def bundle(box="a-box"):
    """A bundle with every planted secret in some file, in a file's name and in the reason of an item."""
    writer = BundleWriter(box, "live", "0.1.0", "2026-01-01T00:00:00Z")
    for number, (kind, values) in enumerate(MADE.items()):
        text = "\n".join(told(kind, value) for value in values)
        writer.add("file", f"/proc/{number}/{kind}", text + "\nMemTotal: 131072000 kB\n")
    for host in MADE["host"]:
        writer.add("file", f"/sys/fs/cgroup/{host}/memory.max", "max\n")
        writer.add(
            "command", f"ssh {host} uptime", None, status="not_available", why=f"no route to {host}"
        )
    rows = [
        {
            "pid": 7,
            "name": "prog",
            "uid": 4000,
            "args": ["/usr/bin/prog", "--quietly=please", "vexofen.txt"],
        },
        {"pid": 8, "name": "python3", "uid": 1000, "args": ["python3", "train.py"]},
    ]
    writer.add("file", "processes", "".join(json.dumps(row) + "\n" for row in rows))
    groups = [{"gid": 1000, "name": "vexolum"}, {"gid": 44, "name": "video"}]
    writer.add("file", "identity", json.dumps({"uid": 1000, "groups": groups}))
    writer.add("file", "/var/log/who", "vexolum did it\n")
    writer.add("file", "/etc/latin", "caf\xe9 vexolum\n".encode("latin-1"))
    writer.add("file", "/etc/wide", "vexolum wide\n".encode("utf-16"))
    writer.add("file", "/proc/7/environ", "A=1\0USER=vexolum\0")
    return writer


@pytest.mark.parametrize("name", ["out", "out.tar.gz"])
def test_no_planted_secret_survives_in_a_bundle_and_it_still_opens(known, tmp_path, name):
    bundle().write(tmp_path / "in")
    replaced = redact_bundle(tmp_path / "in", tmp_path / name, known)
    clean = open_bundle(tmp_path / name)
    files = read_files(tmp_path / name)
    for kind, values in MADE.items():
        for value in values:
            seen = told_again(
                [[file, raw.decode("latin-1")] for file, raw in files.items()] + replaced.lines()
            ).lower()
            assert value.lower() not in seen, kind
    everything = json.dumps(
        clean.read("processes").text + str(sorted(files)) + str([raw for raw in files.values()])
    )
    assert "vexo" not in everything and "quietly" not in everything
    assert (
        "train.py" in everything
        and "131072000" in everything
        and "video" in clean.read("identity").text
    )
    assert "v\0e\0x\0o" not in files["raw/etc/wide"].decode("latin-1")
    user = clean.read("/var/log/who").text.split()[0]
    assert user.startswith("user-") and user in clean.read("/etc/latin").text + files[
        "raw/etc/latin"
    ].decode("latin-1")
    assert len({i.source for i in clean.items}) == len(clean.items)


@pytest.mark.parametrize("box", sorted(path.parent.name for path in BOXES.glob("*/manifest.json")))
def test_a_recorded_box_keeps_all_that_is_told_of_it(tmp_path, box):
    original = open_bundle(BOXES / box)
    redact_bundle(BOXES / box, tmp_path / "out", known_values(original))
    clean = open_bundle(tmp_path / "out")
    changed = [
        i.source
        for i, j in zip(original.items, clean.items, strict=True)
        if (i.source, original.read(i.source).text) != (j.source, clean.read(j.source).text)
    ]
    assert set(changed) <= {
        "host",
        "nvidia-smi -q -x",
        "rocm-smi --showbus --showproductname --showuniqueid --json",
    }


def test_one_name_over_bundle_and_text(known, tmp_path):
    bundle().write(tmp_path / "in")
    redact_bundle(tmp_path / "in", tmp_path / "out", known)
    host = MADE["host"][4]
    assert (
        redact_text(host, known) in open_bundle(tmp_path / "out").read("/proc/0/host").text.split()
    )
    sources = [item.source for item in open_bundle(tmp_path / "out").items]
    assert f"ssh {redact_text(host, known)} uptime" in sources


def test_the_same_bundle_twice_is_the_same(known, tmp_path):
    bundle().write(tmp_path / "in")
    redact_bundle(tmp_path / "in", tmp_path / "out", known)
    redact_bundle(tmp_path / "out", tmp_path / "twice", known)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "twice")


def database(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute("create table a (b text)")
    return (tmp_path / "a.db").read_bytes()


def test_binary_members_are_refused_by_name_in_one_line_unless_told(known, tmp_path):
    files = {
        "a.txt": b"hello",
        "study.db": database(tmp_path),
        "core.bin": bytes(range(256)) * 9,
        "x.gz": b"\x1f\x8b\x08\0abc",
    }
    with pytest.raises(RedactError) as error:
        redact_files(files, known)
    assert all(name in str(error.value) for name in ("study.db (SQLite)", "core.bin", "x.gz"))
    assert "\n" not in str(error.value) and "a.txt" not in str(error.value)
    clean, replaced = redact_files(files, known, allow_binary=True)
    assert clean == files and len(replaced.notes) == 3


def test_nothing_is_written_where_a_member_is_refused(known, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "core.bin").write_bytes(bytes(range(256)))
    with pytest.raises(RedactError):
        redact_bundle(tmp_path / "in", tmp_path / "out.tar.gz", known)
    assert not (tmp_path / "out.tar.gz").exists()


def test_links_are_refused(known, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="link"):
        redact_bundle(tmp_path / "in", tmp_path / "out", known)


def test_a_snapshot_and_a_table_lose_their_paths(known):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    user = MADE["user"][2]
    frames = [{"filename": f"/home/{user}/a.py", "line": 3}]
    snapshot = {"segments": [{"address": 1 << 40, "frames": frames}], "device_traces": [[]]}
    table = pa.table(
        {
            "frame": [f"/home/{user}/a.py", None],
            f"of {user}": [1, 2],
            "tree": [{"who": user}, {"who": "x"}],
            "rows": [[user], []],
        }
    ).replace_schema_metadata({"by": user})
    out = io.BytesIO()
    pq.write_table(table, out)
    clean, _ = redact_files(
        {"s.pickle": pickle.dumps(snapshot, protocol=4), "t.parquet": out.getvalue()}, known
    )
    name = redact_text(user, known)
    back = pickle.loads(clean["s.pickle"])
    assert back["segments"][0]["frames"][0] == {"filename": f"/home/{name}/a.py", "line": 3}
    assert back["segments"][0]["address"] == 1 << 40
    seen = pq.read_table(io.BytesIO(clean["t.parquet"]))
    assert (
        user not in str(seen.to_pylist()) + str(seen.schema)
        and seen.column(0)[0].as_py() == f"/home/{name}/a.py"
    )
    assert user.encode() not in clean["t.parquet"] + clean["s.pickle"]


def test_a_pickle_that_runs_code_and_a_table_of_bytes_are_refused(known):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [b"x"]}), out)
    with pytest.raises(RedactError, match=r"p\.pickle.*t\.parquet"):
        redact_files({"p.pickle": pickle.dumps(Path("x")), "t.parquet": out.getvalue()}, known)


def test_pictures_lose_their_words_and_keep_their_pixels(known):
    words = MADE["email"][0]
    clean, replaced = redact_files({"a.png": png(words), "b.jpg": jpeg(words)}, known)
    assert words.encode() not in clean["a.png"] + clean["b.jpg"]
    assert (
        b"IDAT" in clean["a.png"]
        and b"JFIF" in clean["b.jpg"]
        and clean["b.jpg"].endswith(b"\xff\xd9")
    )
    assert len(replaced.notes) == 2
    with pytest.raises(RedactError):
        redact_files({"a.png": png(words)[:60]}, known)


def test_files_of_a_run_share_their_names(known):
    user = MADE["user"][0]
    run = {
        "run.json": json.dumps(
            {"verdict": {"summary": f"/home/{user}"}, "bytes": 1 << 40}, indent=1
        ).encode(),
        f"{user}/kernel.stderr": f"by {user}\n".encode(),
        "notebook.ipynb": json.dumps(
            {"nbformat": 4, "nbformat_minor": 5, "metadata": {"who": user}, "cells": []}
        ).encode(),
    }
    clean, _ = redact_files(run, known)
    name = redact_text(user, known)
    assert set(clean) == {"run.json", f"{name}/kernel.stderr", "notebook.ipynb"}
    assert json.loads(clean["run.json"]) == {
        "verdict": {"summary": f"/home/{name}"},
        "bytes": 1 << 40,
    }
    assert json.loads(clean["notebook.ipynb"])["metadata"]["who"] == name


def test_this_box_tells_its_own_names():
    import socket

    box = known_values("live")
    host = socket.gethostname()
    if len(box):
        assert repr(box).startswith("Known(") and host not in repr(box)
    if redact_text(host, box) == host:
        assert box.common or len(host) < 3

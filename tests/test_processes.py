"""Processes and their GPU files: what is gone, what is refused and what holds nothing stay three different things."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from kernel_boxes import box
from other_user import as_nobody, open_folder  # noqa: F401 - a fixture
from trees import link, make_tree, write

from helpers.look import files, hanging
from helpers.look.processes import processes, walk_device_files, walk_processes


def collect_processes(root):
    return list(walk_processes(str(root)))


def collect_device_files(root):
    return list(walk_device_files(str(root)))


def first_of_dri(tree):
    rows = collect_device_files(tree.root)
    return next(row for row in rows if row["target"].startswith("/dev/dri"))


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", processes=20, device_files=8, amd=1, nvidia=1)


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A tree that no test changes."""
    place = tmp_path_factory.mktemp("still")
    return make_tree(place, processes=20, device_files=8, amd=1, nvidia=1)


def test_every_process_of_a_tree_is_read(still):
    rows = collect_processes(still.root)
    assert tuple(p.pid for p in processes(box(processes=rows))) == still.pids
    assert {row["status"] for row in rows} == {"ok"}
    assert "shell (1)" in {row["name"] for row in rows}, "a bracket in a name shifts no field"
    assert not any("args" in row for row in rows), "arguments may hold secrets"


def test_a_zombie_has_no_memory_which_is_not_zero_memory(still):
    found = processes(box(processes=collect_processes(still.root)))
    zombies = [p for p in found if p.state == "Z"]
    assert len(zombies) == 2 and sum(p.state == "D" for p in found) == 2
    assert {(p.rss_anon_bytes.value, p.rss_anon_bytes.status) for p in zombies} == {
        (None, "not_available")
    }


def test_a_process_that_ends_while_it_is_looked_at_says_so(tree, monkeypatch):
    shutil.rmtree(tree.root / "proc" / str(tree.pids[3]))
    (tree.root / "proc" / str(tree.pids[3])).mkdir()
    rows = {row["pid"]: row for row in collect_processes(tree.root)}
    ended = rows[tree.pids[3]]
    assert (ended["status"], ended["why"]) == ("not_available", "ended while it was looked at")
    assert sum(row["status"] == "ok" for row in rows.values()) == 19
    held = [row["pid"] for row in collect_device_files(tree.root)]
    assert tree.pids[3] not in held


def test_a_tree_without_proc_is_an_error_of_the_caller(tmp_path):
    with pytest.raises(FileNotFoundError):
        collect_processes(tmp_path)


def test_only_gpu_files_are_listed_with_their_fdinfo(still):
    found = collect_device_files(still.root)
    assert len(found) == still.fds == 8
    nodes = {f"/dev/{name}" for name in ("kfd", "dri/renderD128", "nvidiactl", "nvidia0")}
    assert {row["target"] for row in found} == nodes
    drm = [row for row in found if row["target"].startswith("/dev/dri")]
    assert all(f"drm-pdev:\t{still.amd[0]}" in row["fdinfo"] for row in drm)


def test_odd_entries_in_proc_change_nothing(tree):
    before = collect_processes(tree.root), collect_device_files(tree.root)
    for odd in ("12x", "-5", "0x10", "\u0663", "self"):
        write(tree.root, f"/proc/{odd}/status", "Name:\todd\n")
    pid = tree.pids[0]
    link(tree.root, f"/proc/{pid}/fd/notanumber", "/dev/kfd")
    write(tree.root, f"/proc/{pid}/fd/999", "a file, not a link")
    assert (collect_processes(tree.root), collect_device_files(tree.root)) == before


def test_a_file_that_is_gone_or_renamed_costs_its_own_row(tree):
    first = first_of_dri(tree)
    info = tree.root / f"proc/{first['pid']}/fdinfo/{first['fd']}"
    info.unlink()
    os.mkfifo(info)
    rows = collect_device_files(tree.root)
    odd = [row for row in rows if row["status"] != "ok"]
    assert len(rows) == 8 and [(row["fd"], row["why"]) for row in odd] == [
        (first["fd"], "a pipe, not a regular file")
    ]


def test_a_name_that_is_no_utf8_is_kept_readable(tree):
    path = tree.root / f"proc/{tree.pids[0]}/status"
    path.write_bytes(path.read_bytes().replace(b"Name:\t", b"Name:\t\xff\xfe"))
    first = processes(box(processes=collect_processes(tree.root)))[0]
    assert first.name.startswith("\ufffd\ufffd")


def hangs(root, source, limit=0, at="", real=files.read):
    if source == at:
        time.sleep(60)
    return real(root, source, limit)


def test_a_read_that_hangs_costs_its_row_and_its_limit(still, monkeypatch):
    monkeypatch.setattr(hanging, "READ_LIMIT_S", 0.3)
    first = first_of_dri(still)
    at = f"/proc/{first['pid']}/fdinfo/{first['fd']}"
    monkeypatch.setattr(files, "read", partial(hangs, at=at))
    rows = collect_device_files(still.root)
    odd = [(row["target"], row["why"]) for row in rows if row["status"] != "ok"]
    assert odd == [(first["target"], "hung for 0.3 s")] and len(rows) == 8
    monkeypatch.setattr(files, "read", partial(hangs, at=f"/proc/{still.pids[2]}/status"))
    states = [row["status"] for row in collect_processes(still.root)]
    assert states.count("ok") == 19 and states[2] == "not_available"


def test_what_another_user_may_not_see_is_refused_not_missing(open_folder: Path) -> None:  # noqa: F811
    tree = make_tree(open_folder, processes=20, device_files=8, amd=1, nvidia=1)
    proc = tree.root / "proc"
    (proc / f"{tree.pids[0]}/fd").chmod(0o500)
    (proc / f"{tree.pids[5]}/status").chmod(0o400)
    kernel_thread = proc / f"{tree.pids[7]}/stat"
    kernel_thread.write_text(kernel_thread.read_text().replace(" 4194304 ", " 2129984 "))
    (proc / f"{tree.pids[7]}/fd").chmod(0o500)
    code = (
        "import json; from helpers.look.processes import *\n"
        "print(json.dumps([list(walk_processes(sys.argv[1])), list(walk_device_files(sys.argv[1]))]))"
    )
    seen, held = as_nobody(code, tree.root)
    refused = [row for row in seen if row["status"] != "ok"]
    assert [(row["pid"], row["status"], row["why"]) for row in refused] == [
        (tree.pids[5], "not_allowed", "Permission denied (EACCES)")
    ]
    assert [row["pid"] for row in held if row["status"] == "not_allowed"] == [tree.pids[0]], (
        "a kernel thread holds nothing"
    )
    assert processes(box(processes=seen))[5].rss_anon_bytes.status == "not_allowed"


def test_this_process_sees_itself():
    rows = collect_processes(Path("/"))
    own = next(p for p in processes(box(processes=rows)) if p.pid == os.getpid())
    assert own.uid == os.getuid() and int(own.rss_anon_bytes.value or 0) > 1 << 20

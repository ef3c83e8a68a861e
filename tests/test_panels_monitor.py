"""The live monitor: what a sample holds, the ring and its file, the feed and its end, and whom it dares to ask."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import link, make_tree, write

from helpers.look.drm import parse_fdinfo
from helpers.tell.panels import frame, monitor, sampler

ROOT = Path(__file__).resolve().parents[1]
KINDS = st.sampled_from(
    ["drm-resident-", "drm-memory-", "drm-total-", "drm-shared-", "drm-purgeable-"]
)
REGIONS = st.sampled_from(["vram", "gtt", "cpu", "cycles-gfx"])


def until(ask, seconds=10.0):
    """What ``ask`` says as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def sample(at=1.0, used=4, rss=None, **more):
    return {
        "at": at,
        "host": {"MemTotal": 100, "MemAvailable": 60},
        "holders": [],
        "why": [],
        "gpus": [{"pci": "0000:03:00.0", "vram_used": used, "vram_total": 8}],
        "process": rss and {"pid": 7, "name": "x", "state": "S", "rss_anon": rss},
        **more,
    }


@given(
    st.lists(
        st.tuples(KINDS, REGIONS, st.integers(0, 1 << 40), st.sampled_from(["", " KiB", " MiB"])),
        max_size=12,
    )
)
def test_the_quick_reading_of_fdinfo_agrees_with_the_careful_one(rows):
    text = "".join(
        f"{kind}{region}:\t{number}{unit}\n"
        for kind, region, number, unit in dict(
            ((kind, region), (kind, region, number, unit)) for kind, region, number, unit in rows
        ).values()
    )
    careful = parse_fdinfo("drm-driver:\tamdgpu\n" + text)
    expected = {
        region: careful.held(region)
        for region in ("vram", "gtt")
        if careful.held(region) is not None
    }
    assert sampler.held(text.encode()) == expected


def test_the_first_words_of_amdgpu_for_its_memory_are_read_too():
    assert sampler.held(b"vram mem:\t12 kB\ngtt mem:\t3 kB\n") == {"vram": 12 << 10, "gtt": 3 << 10}


def test_every_holder_of_a_tree_is_found_with_its_bytes_within_a_turn(tmp_path):
    tree = make_tree(tmp_path, processes=120, device_files=60, amd=1)
    seen = sampler.Sampler(str(tmp_path))
    for _ in range(120 // sampler.SCANNED + 1):
        last = seen.sample()
    assert {row["pid"]: row["vram"] for row in last["holders"]} == tree.held
    assert last["gpus"] == [
        {
            "pci": tree.amd[0],
            "vram_used": sum(tree.held.values()) + (256 << 20),
            "vram_total": 20 << 30,
            "gtt_used": 64 << 20,
            "gtt_total": 31 << 30,
        }
    ]


def test_a_process_on_two_cards_has_a_row_on_each_and_one_that_ends_is_forgotten(tmp_path):
    write(tmp_path, "/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    write(tmp_path, "/proc/9/status", "Name:\ttwo cards\nState:\tS (sleeping)\nRssAnon:\t 5 kB\n")
    for fd, pci in ((3, "0000:03:00.0"), (4, "0000:13:00.0"), (5, "0000:13:00.0")):
        link(tmp_path, f"/proc/9/fd/{fd}", f"/dev/dri/renderD12{fd}")
        write(
            tmp_path,
            f"/proc/9/fdinfo/{fd}",
            f"drm-pdev:\t{pci}\ndrm-client-id:\t{pci[6]}\ndrm-memory-vram:\t{pci[6]} MiB\n",
        )
    seen = sampler.Sampler(str(tmp_path), pid=9)
    found = seen.sample()
    assert [(row["pci"], row["vram"] >> 20) for row in found["holders"]] == [
        ("0000:03:00.0", 3),
        ("0000:13:00.0", 3),
    ]
    assert found["process"] == {
        "pid": 9,
        "name": "two",
        "state": "S",
        "rss_anon": 5 << 10,
        "vram": 6 << 20,
    }
    (tmp_path / "proc/9").rename(tmp_path / "gone")
    for _ in range(sampler.LIST_EVERY):
        found = seen.sample()
    assert found["holders"] == [] and found["process"] == {
        "pid": 9,
        "why": "no such process, or it has ended",
    }


class Nvml:
    """What one NVIDIA card with one process on it answers."""

    def number(self, name):
        return 1

    def gpu(self, index):
        return {
            "pci": "00000000:81:00.0",
            "used_bytes": 5 << 30,
            "total_bytes": 24 << 30,
            "graphics": None,
            "compute": [{"pid": os.getpid(), "gpu_instance": None, "used_bytes": 3 << 30}],
        }


def test_an_nvidia_card_and_its_process_are_told_by_nvml(monkeypatch):
    monkeypatch.setattr(sampler, "Nvml", Nvml)
    found = sampler.Sampler(pid=os.getpid()).sample()
    assert found["gpus"][-1] == {
        "pci": "00000000:81:00.0",
        "vram_used": 5 << 30,
        "vram_total": 24 << 30,
    }
    assert (
        found["process"]["vram"] == found["holders"][-1]["vram"] == 3 << 30
        and found["holders"][-1]["by"] == "NVML"
    )


def test_the_ring_forgets_the_oldest_and_the_file_holds_samples_and_events(tmp_path):
    state = monitor.Monitor(kept=3)
    with pytest.raises(ValueError, match="nothing to save"):
        state.save(tmp_path)
    state.ring.extend(sample(at) for at in range(5))
    state.marks.append((3.0, "batch 2"))
    first, second = state.save(tmp_path), state.save(tmp_path)
    kept = json.loads(first.read_text())
    assert first != second and [one["at"] for one in kept["samples"]] == [2, 3, 4]
    assert kept["events"] == [{"at": 3.0, "says": "batch 2"}]


def test_what_was_not_told_is_not_drawn_as_zero():
    state = monitor.Monitor()
    state.ring.extend([sample(1), sample(2, used=None), sample(3, rss=10)])
    assert state.shares() == {
        "VRAM 0000:03:00.0": [0.5, None, 0.5],
        "host RAM": [0.4] * 3,
        "the process, anonymous": [None, None, 0.1],
    }
    state.ring.append(sample(4, used=None))
    assert "VRAM 0000:03:00.0 not told" in state.chart() and state.chart().count("polyline") == 3
    assert "not told" in monitor.sample_html(sample(used=None))


def test_names_of_processes_are_never_markup():
    told = monitor.sample_html(
        sample(holders=[{"pid": 1, "name": "<b>x", "pci": "p", "vram": 5, "by": "fdinfo"}])
    )
    assert "<b>" not in told and "&lt;b&gt;x" in told


def test_the_panel_watches_pauses_marks_saves_and_ends_with_its_cell(tmp_path):
    state = monitor.Monitor()
    panel = frame.open_panel(
        monitor.NAME, lambda made: monitor.build(made, state, os.getpid(), tmp_path / "kept")
    )
    feed = panel.ends[0].__self__
    pid, event, buttons, drawing, asked, rows = panel.box.children[2:]
    pause, mark, ask, save = buttons.children
    until(lambda: state.ring and str(os.getpid()) in rows.value)
    assert state.ring[-1]["process"]["rss_anon"] > 1 << 20 and "host RAM" in drawing.value
    pause.click()
    stood, count = rows.value, len(state.ring)
    until(lambda: len(state.ring) > count + 1)
    assert (
        rows.value == stood and pause.description == "Go on" and "stands still" in panel.line.value
    )
    event.value = "batch 2"
    mark.click()
    save.click()
    saved = json.loads(next((tmp_path / "kept").glob("*.json")).read_text())
    assert saved["events"][0]["says"] == "batch 2" and len(saved["samples"]) > 1
    pause.click()
    pid.value = 1
    until(lambda: (state.ring[-1]["process"] or {}).get("pid") == 1)
    again = frame.open_panel(monitor.NAME, lambda made: [])
    assert (
        panel.closed
        and not again.closed
        and feed.child.returncode is not None
        and not feed.thread.is_alive()
    )


def test_a_sampler_that_hangs_in_the_driver_is_left_behind_and_the_panel_opens_again(monkeypatch):
    monkeypatch.setattr(monitor, "END_S", 0.2, raising=False)
    panel = frame.open_panel(monitor.NAME, lambda made: monitor.build(made, monitor.Monitor()))
    child = panel.ends[0].__self__.child
    end, child.kill = (
        child.kill,
        lambda: None,
    )  # as a process that waits inside the kernel takes SIGKILL
    try:
        again = frame.open_panel(monitor.NAME, lambda made: monitor.build(made, monitor.Monitor()))
        assert panel.closed and not again.closed and child.poll() is None
        again.close()
    finally:
        end()
        child.wait()


def test_a_sampler_that_dies_is_said_in_the_panels_line():
    panel = frame.open_panel(monitor.NAME, lambda made: monitor.build(made, monitor.Monitor()))
    panel.ends[0].__self__.child.send_signal(signal.SIGKILL)
    until(lambda: "the sampler ended with exit code -9" in panel.line.value)
    panel.close()


def test_the_sampler_ends_with_whoever_listens():
    child = subprocess.Popen(
        [sys.executable, "-m", "helpers.tell.panels.sampler", "0", "0.05"],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert "host" in json.loads(child.stdout.readline())
    child.stdin.close()
    assert child.wait(10) == 0
    child.stdout.close()


STANDS_IN = """
import json, os, pathlib, signal, sys, time
row = {"ended": "", "signals": {"SIGUSR1": "recorder"}, "snapshots": [], "devices": [], "notes": []}
path = pathlib.Path(sys.argv[1], f"{os.getpid()}-1.json")
def answer(number, frame):
    row["snapshots"].append({})
    row["devices"] = [{"index": 0, "stats": {"reserved_bytes.all.current": 3 << 30, "allocated_bytes.all.current": 2 << 30}}]
    path.write_text(json.dumps(row))
signal.signal(signal.SIGUSR1, answer)
path.write_text(json.dumps(row))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_torch_is_asked_only_in_a_process_that_listens(tmp_path):
    env = {**os.environ, "CASEBOOK_RECORD": json.dumps({"folder": str(tmp_path)})}
    child = subprocess.Popen(
        [sys.executable, "-c", STANDS_IN, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    try:
        assert (
            monitor.torch_numbers(child.pid)
            == "device 0: torch holds 3.00 GiB, its tensors 2.00 GiB"
        )
        path = next(tmp_path.glob("*.json"))
        path.write_text(
            json.dumps(
                {
                    **json.loads(path.read_text()),
                    "signals": {"SIGUSR1": "the program's own handler"},
                }
            )
        )
        with pytest.raises(ValueError, match="does not listen"):
            monitor.torch_numbers(child.pid)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_process_not_recorded_gets_no_signal():
    child = subprocess.Popen(["sleep", "30"])
    try:
        with pytest.raises(ValueError, match="not started under record"):
            monitor.torch_numbers(child.pid)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()

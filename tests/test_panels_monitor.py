"""The live monitor: what a sample holds, the chart and the tables, the feed and its end."""

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from pythons import starts
from rich.console import Console
from trees import link, make_tree, write

from helpers.cli import main
from helpers.look import sampler
from helpers.tell.panels import frame, live, monitor, terminal

ROOT = Path(__file__).resolve().parents[1]


PATIENCE_S = 300
"""A wait gives up after so long: far more than a busy machine needs."""


def until(ask):
    """What ``ask`` says as soon as it is true."""
    end = time.monotonic() + PATIENCE_S
    while not (answer := ask()):
        if time.monotonic() > end:
            pytest.fail("waited in vain")
        time.sleep(0.02)
    return answer


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


def two_cards(root):
    """A process with three files of two clients on two cards."""
    write(root, "/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    write(root, "/proc/9/status", "Name:\ttwo cards\nState:\tS (sleeping)\nRssAnon:\t 5 kB\n")
    for fd, pci in ((3, "0000:03:00.0"), (4, "0000:13:00.0"), (5, "0000:13:00.0")):
        link(root, f"/proc/9/fd/{fd}", f"/dev/dri/renderD12{fd}")
        held = f"drm-client-id:\t{pci[6]}\ndrm-memory-vram:\t{pci[6]} MiB\n"
        write(root, f"/proc/9/fdinfo/{fd}", f"drm-pdev:\t{pci}\n{held}")


def test_a_process_on_two_cards_has_a_row_on_each_and_one_that_ends_is_forgotten(tmp_path):
    two_cards(tmp_path)
    seen = sampler.Sampler(str(tmp_path), pid=9)
    found = seen.sample()
    rows = [(row["pci"], row["vram"] >> 20) for row in found["holders"]]
    assert rows == [("0000:03:00.0", 3), ("0000:13:00.0", 3)]
    sizes = {"rss_anon": 5 << 10, "vram": 6 << 20}
    assert found["process"] == {"pid": 9, "name": "two", "state": "S", **sizes}
    (tmp_path / "proc/9").rename(tmp_path / "gone")
    for _ in range(sampler.LIST_EVERY):
        found = seen.sample()
    ended = {"pid": 9, "why": "no such process, or it has ended"}
    assert found["holders"] == [] and found["process"] == ended


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
    sizes = {"vram_used": 5 << 30, "vram_total": 24 << 30}
    assert found["gpus"][-1] == {"pci": "00000000:81:00.0", **sizes}
    last = found["holders"][-1]
    assert found["process"]["vram"] == last["vram"] == 3 << 30 and last["by"] == "NVML"


def test_what_was_not_told_is_not_drawn_as_zero():
    samples = [sample(1), sample(2, used=None), sample(3, rss=10)]
    assert live.shares_of(samples) == {
        "VRAM 0000:03:00.0": [0.5, None, 0.5],
        "host RAM": [0.4] * 3,
        "the process, anonymous": [None, None, 0.1],
    }
    chart = live.chart([*samples, sample(4, used=None)])
    assert "VRAM 0000:03:00.0 not known" in chart
    assert chart.count("polyline") == 3
    pools, holders = live.views(sample(used=None))
    assert [row["in use"] for row in pools.rows] == [40, "not known"]
    assert holders.rows == []


def test_the_chart_ends_at_the_right():
    chart = live.chart([sample(at) for at in range(4)])
    assert "points='590,51.0 592,51.0 595,51.0 598,51.0'" in chart
    assert "host RAM 40 %" in chart
    assert "VRAM 0000:03:00.0 50 %" in chart


def test_the_largest_holders_are_listed_and_names_are_never_markup():
    rows = [{"pid": n, "name": "<b>x", "pci": "p", "vram": n, "by": "fdinfo"} for n in range(20)]
    *_, holders = live.views(sample(holders=rows, rss=5))
    assert [row["pid"] for row in holders.rows] == [str(n) for n in range(19, 7, -1)]
    assert (
        holders.title.endswith(", the 12 largest of 20") and holders.rows[0]["GTT"] == "not known"
    )
    html = frame.parts_html(live.views(sample(holders=rows, rss=5)))
    assert (
        "<b>" not in html and "&lt;b&gt;x" in html and "the process watched, from outside" in html
    )
    gone = sample(process={"pid": 7, "why": "no such process"})
    assert live.views(gone)[1] == "process 7: no such process"


@pytest.fixture
def panel():
    """The monitor of this very process, open: its frame and its feed."""
    watch = monitor.Watch(pid=os.getpid())
    made = frame.open_panel(monitor.PANEL.name, lambda one: monitor.build(one, watch))
    yield made, made.ends[0].__self__
    frame.open_panel(monitor.PANEL.name, lambda one: [])


def test_the_panel_watches_and_ends_with_its_cell(panel):
    made, feed = panel
    pid, _, drawing, rows = made.box.children[2:]
    until(lambda: str(os.getpid()) in rows.value)
    assert "the process, anonymous" in drawing.value
    pid.value = "1"
    until(lambda: str(os.getpid()) not in rows.value)
    again = frame.open_panel(monitor.PANEL.name, lambda one: [])
    assert made.closed and not again.closed
    assert feed.child.returncode is not None and not feed.thread.is_alive()


def test_a_sampler_that_hangs_in_the_driver_is_left_behind_and_the_panel_opens_again(
    monkeypatch, panel
):
    monkeypatch.setattr(live, "END_S", 0.2)
    made, feed = panel
    end = feed.child.kill
    feed.child.kill = lambda: None  # as a process that waits inside the kernel takes SIGKILL
    try:
        again = frame.open_panel(monitor.PANEL.name, lambda one: [])
        assert made.closed and not again.closed and feed.child.poll() is None
    finally:
        end()
        feed.child.wait()


def test_a_sampler_that_dies_is_said_in_the_panels_line(panel):
    made, feed = panel
    feed.child.send_signal(signal.SIGKILL)
    until(lambda: "the sampler ended with exit code -9" in made.line.value)


def test_the_sampler_ends_with_whoever_listens():
    command = [sys.executable, "-m", "helpers.look.sampler", "0", "0.05"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as child:
        assert "host" in json.loads(child.stdout.readline())
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 0


class Terminal:
    """A terminal with the monitor in it, and what it shows."""

    def __init__(self, *, columns=100, flags=()):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        argv = [sys.executable, *flags, "-m", "helpers", "monitor", str(os.getpid())]
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        env = {**os.environ, "TERM": "xterm", "PYTHONDONTWRITEBYTECODE": "1"}
        self.child = subprocess.Popen(argv, cwd=ROOT, env=env, start_new_session=True, **streams)
        self.master = master
        self.bytes = b""

    @property
    def seen(self):
        return self.bytes.decode(errors="replace")

    def reads(self):
        """Whether there was more to read."""
        more = select.select([self.master], [], [], 0.1)[0]
        if more:
            self.bytes += os.read(self.master, 1 << 16)
        return bool(more)

    def shows(self, words):
        def look():
            ended = self.child.poll() is not None
            if not self.reads() and ended and words not in self.seen:
                pytest.fail(f"it ended without {words!r}: {self.seen}")
            return words in self.seen

        until(look)

    def ends(self):
        def look():
            self.reads()  # a child whose terminal is full waits for its reader
            return self.child.poll() is not None

        try:
            until(look)
            return self.child.returncode
        finally:
            self.child.kill()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_the_terminal_shows_the_rows_of_the_panel_and_is_given_back_however_it_ends(number):
    seen = Terminal()
    seen.shows("host RAM")
    seen.shows("who uses GPU memory")
    seen.shows(str(os.getpid()))
    mine = Path(f"/proc/{seen.child.pid}/task/{seen.child.pid}/children")
    children = [int(pid) for pid in mine.read_text().split()]
    assert children, "the sampler is a child"
    seen.child.send_signal(number)
    seen.shows("\x1b[?1049l")
    assert seen.ends() == 0
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_a_terminal_without_rich_gets_lines():
    seen = Terminal(flags=["-S"])
    seen.shows("host RAM in use")
    assert "\x1b" not in seen.seen
    seen.child.send_signal(signal.SIGINT)
    assert seen.ends() == 0


def test_what_is_no_terminal_gets_one_line_a_sample_and_each_note_once_on_plain_python():
    python = starts("python3.8") or sys.executable
    argv = [python, "-S", "-m", "helpers", "monitor", str(os.getpid()), "--count", "2"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=env)
    notes = [line for line in done.stdout.splitlines() if line.startswith("Note: ")]
    lines = [line for line in done.stdout.splitlines() if line not in notes]
    assert done.returncode == 0 and not done.stderr and len(lines) == 2
    assert len(notes) == len(set(notes))
    assert all("host RAM" in line and f"pid {os.getpid()}" in line for line in lines)


def test_names_that_would_move_the_cursor_do_not():
    holder = {"pid": 5, "name": "a\x1b[2Jb\n", "pci": "x", "by": "y"}
    screen = io.StringIO()
    Console(file=screen, width=60, force_terminal=False).print(
        terminal.picture(sample(holders=[holder]))
    )
    lines = screen.getvalue().splitlines()
    assert not any("\x1b" in line or len(line) > 60 for line in lines)
    assert any(line.startswith("5") for line in lines)


@pytest.mark.parametrize(
    ("words", "expected"), [(["x"], "a PID"), (["--every", "0"], "0.1 to 3600")]
)
def test_a_wrong_number_is_refused_in_one_line(words, expected, capsys):
    assert main(["monitor", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line

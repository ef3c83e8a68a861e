"""Rehearsals, as far as they go without a CUDA build of torch: cards, arguments, what a program reports, the C file."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import cli
from helpers.allocator.record import INJECT
from helpers.commands import rehearse
from helpers.ground.shapes import NextStep, Verdict
from helpers.look import cards
from helpers.rehearse import (
    build,
    fault,
    holders,
    remedies,
    reports,
    search,
    torches,
    view,
    words,
)
from helpers.rehearse import run as run_module
from helpers.rehearse import trust as trust_module
from helpers.rehearse.box_settings import BoxSettings, settings_of
from helpers.rehearse.environment import environment
from helpers.rehearse.holders import CardUse
from helpers.rehearse.rehearsal import Oom, Rehearsal, RehearsalLimits
from helpers.rehearse.words import PROGRAMS
from helpers.settings.presets import Preset
from helpers.trials.box_study import FixStudy
from helpers.trials.catalogue import Remedy
from helpers.trials.fixes import FixRow

MIB = 1 << 20
GIB = 1 << 30
DEVICE_ROWS = (words.HERE / "properties.def").read_text()
CARD = cards.find_card("4090")
QUIET = {"pid": 1, "forks": 0, "forked": 0, "error": "", "message": "", "frames": [], "missing": []}
QUIET |= {"counts": {"launches": 5, "cudnn": 0}, "reads": [], "beside": "", "bucket_bytes": 0}
QUIET |= {"stopped": "", "steps": 0, "step_peaks": [], "has_buckets": False, "compiled": 0}
RUN = Rehearsal(
    device=CARD,
    torch="2.14.1",
    conf="",
    exit_code=0,
    seconds=1.0,
    peak_allocated_bytes=10,
    peak_reserved_bytes=20 * MIB,
    retries=0,
    ooms=0,
    oom=None,
    trace=None,
    why_no_trace="",
    error="",
    exact=True,
    trust=(),
    notes=(),
)


def ran(size=CARD.total_bytes, fits=True, **more):
    card = replace(CARD, total_bytes=size)
    return replace(RUN, **{"device": card, "exit_code": not fits, "ooms": int(not fits), **more})


def refused(kind, says):
    """A refusal in one line that says so."""
    return pytest.raises(kind, match=rf"\A[^\n]*{says}[^\n]*\Z")


def test_peaks_that_nobody_saw_are_unknown_and_never_zero():
    lost = ran(peak_allocated_bytes=None, peak_reserved_bytes=None)
    text = "\n".join(view.answer(lost, None))
    assert "peak" not in text.lower()
    assert "0 B" not in text and "left" not in text
    assert "Cannot tell: no use of the GPU was seen" in text and "fits" not in text


# The command's arguments.


@given(
    before=st.lists(st.sampled_from(["python", "train.py", "--lr", "0.1", "x=1"]), max_size=4),
    value=st.integers(1, 999),
    new=st.integers(1, 999),
    joined=st.booleans(),
    dashes=st.sampled_from(["", "--"]),
)
@settings(max_examples=50, deadline=None)
def test_an_argument_is_found_read_and_changed_and_nothing_else_is(
    before, value, new, joined, dashes
):
    words = [*before, *([f"--batch={value}"] if joined else ["--batch", str(value)]), "--last"]
    assert search.start_of(words, dashes + "batch") == value
    changed = search.with_argument(words, dashes + "batch", new)
    assert search.start_of(changed, "batch") == new and len(changed) == len(words)
    assert sum(old != now for old, now in zip(words, changed, strict=True)) == int(new != value)


@pytest.mark.parametrize(
    "words", ["train.py", "--batch", "train.py --batch eight", "train.py --batch 0", "batch 8"]
)
def test_an_argument_that_is_not_there_or_no_number_is_refused(words):
    with refused(search.SearchError, "--find-batch batch"):
        search.start_of(words.split(), "batch")


# Searches.


@given(limit=st.integers(1, 5000), start=st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_the_largest_batch_is_the_last_that_fits(limit, start):
    found = search.find_batch(lambda batch: ran(fits=batch <= limit), start)
    assert (found.best, found.beyond) == (limit, limit + 1) and len(found.done) < 30


def test_no_batch_fits_or_every_one_that_is_tried():
    assert search.find_batch(lambda batch: ran(fits=False), 8).best is None
    assert search.find_batch(lambda batch: ran(), 8).beyond is None


@given(needs=st.integers(1, 4000), peak=st.integers(0, 3000), held=st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_the_smallest_card_finishes_and_one_granule_less_does_not(needs, peak, held):
    needs, peak, held = 2 * MIB * (needs + held), 2 * MIB * (needs + peak), 2 * MIB * held
    found = search.find_capacity(
        lambda size: ran(size, size >= needs, peak_reserved_bytes=peak), held
    )
    assert found.best == needs and found.beyond == needs - 2 * MIB


def test_a_program_that_fails_for_another_reason_is_no_out_of_memory():
    with refused(search.SearchError, "without running out of memory: NameError"):
        search.find_batch(lambda batch: ran(exit_code=1, error="NameError: x"), 4)
    with refused(search.SearchError, "reserved nothing"):
        search.find_capacity(lambda size: ran(peak_reserved_bytes=0))


HIP = {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1"}


def test_presets_are_given_as_settings_of_the_cuda_build():
    found = remedies.preset_settings(Preset("a", HIP, {}, ()))
    assert found == ("expandable_segments:True", {"OMP_NUM_THREADS": "1"})
    assert remedies.preset_settings(Preset("b", {}, {}, ())) == ("", {})


def fix_row(name, memory=None, elsewhere=False):
    row = FixRow(name, "", (), "predicted", "not tried", "", "predicted", memory=memory)
    return replace(row, elsewhere=elsewhere)


def measured(rows):
    others = {"the host's": "cpu-return-memory"}
    wanted = [
        Remedy(
            row.remedy,
            "says",
            "predicted",
            "training",
            preset=others.get(row.remedy, "cuda-expandable"),
        )
        for row in rows
    ]
    study = FixStudy(tuple(rows), CARD.total_bytes, "2", "cuda")
    how = {"python": "", "limits": RehearsalLimits(), "on_row": lambda row: None}
    return [row.measured for row in remedies.rehearse_study(study, wanted, CARD, **how)[0].rows]


def test_the_fix_tables_column_has_what_rehearsals_measured(monkeypatch):
    torch = torches.Torch(Path("/t"), "2", True)
    monkeypatch.setattr(build, "ready_torch", lambda *_: torch)
    monkeypatch.setattr(run_module, "rehearse", lambda *_, conf, **__: ran(fits=bool(conf)))
    other = fix_row("other", elsewhere=True)
    rows = [fix_row("one"), other, fix_row("the host's"), fix_row("tried", memory=object())]
    words = measured(rows)
    assert "passes with" in words[0] and "default runs out" in words[0]
    assert "measured by the real allocator" in words[0] and words[1:] == ["not tried"] * 3
    refuses = {"exit_code": 1, "error": "needs bitsandbytes"}
    monkeypatch.setattr(run_module, "rehearse", lambda *_, conf, **__: ran(**refuses))
    assert measured([fix_row("one")])[0].startswith("ended with 1: needs bitsandbytes; default")


# What a program tells of itself.


def trust(*changes, card=CARD, streams=1):
    rows = [{**QUIET, **change} for change in changes]
    return "\n".join(trust_module.trust(rows, card, streams))


def read(op, sizes=False, inside="", where="train.py:3 step", times=1):
    row = dict(op=op, sizes=sizes, inside=inside, where=where, collective="", times=times)
    return {"reads": [row]}


SIZE = read("nonzero", True)


@pytest.mark.parametrize(
    ("error", "message", "code", "says"),
    [
        (
            "AcceleratorError",
            "CUDA error: invalid device ordinal",
            1,
            "the program: it asked for a second",
        ),
        ("OutOfMemoryError", "CUDA out of memory.", 1, "memory: it asked for more"),
        (
            "URLError",
            "<urlopen error [Errno -2] Name or service not known>",
            1,
            "the program: .*download",
        ),
        ("OSError", "We couldn't connect to 'https://x' to load", 1, "the program: .*download"),
        ("EOFError", "EOF when reading a line", 1, "the program: .*standard input"),
        ("TclError", "no display name and no $DISPLAY", 1, "the program: .*display"),
        ("error", "Rebuild the library with Windows, GTK+ 2.x", 1, "the program: .*display"),
        ("RuntimeError", "CUFFT_INTERNAL_ERROR", 1, "the rehearsal: .*library"),
        ("ImportError", "ext.so: undefined symbol: _ZN3c10", 1, "the program: .*CUDA extension"),
        ("ValueError", "a bad width", 1, "the program: it raised an error of its own"),
        ("", "", 136, "the rehearsal: a process crashed .SIGFPE"),
        ("", "", 143, "whoever stopped it: a signal"),
        ("KeyboardInterrupt", "", 130, "whoever stopped it: a signal"),
        ("", "", 137, "whoever stopped it: SIGKILL"),
        ("ChildFailedError", "Signal 11 (SIGSEGV) received by PID 7", 1, "the rehearsal: one of"),
        ("", "", 255, "the program: it ended itself with 255"),
        ("", "", 3, "the program: it ended itself with 3, without an error of Python"),
    ],
)
def test_a_failed_rehearsal_says_whose_fault_it_is(error, message, code, says):
    ended = SimpleNamespace(exit_code=code, signal="", processes=())
    failed = {**QUIET, "error": error, "message": message}
    assert re.match(says, fault.whose_fault(ended, [failed]))
    if error == "ValueError":
        assert "perhaps" in fault.whose_fault(ended, [{**failed, **SIZE}])
    asked = fault.whose_fault(ended, [{**failed, "missing": ["cuGraphicsMapResources"]}])
    assert ("cuGraphicsMap" in asked) == (code in (3, 255))
    assert re.match(says.partition(", without")[0], asked)


def test_what_is_not_answered_is_to_blame_only_where_the_programs_error_has_it():
    asked = {**QUIET, "missing": ["cuLogsRegisterCallback", "cuGraphicsMapResources"]}
    for message, says in (
        ("", "the program: it ended itself with 1.*if that names .*cuLogsRegisterC"),
        ("mode 'sum' is not supported", "the program: it raised an error of its own"),
        ("cuGraphicsMapResources failed", "the rehearsal: .* names cuGraphicsMapResources,"),
        ("CUDA error: operation not supported", "the rehearsal: it asked"),
        ("CUDA_ERROR_NOT_SUPPORTED", "the rehearsal: it asked"),
        ("error of the fake CUDA driver", "the rehearsal: it asked"),
    ):
        failed = {**asked, "error": message and "RuntimeError", "message": message}
        ended = SimpleNamespace(exit_code=1, signal="", processes=())
        assert re.match(says, fault.whose_fault(ended, [failed])), message


def test_what_died_or_was_stopped_says_what_it_had_reached_and_never_less():
    lost = ran(exit_code=139, peak_allocated_bytes=None, at_least=True, whose="x: y")
    text = "\n".join(view.answer(lost, None))
    assert "Peak: at least 20.00 MiB reserved, of which unknown was in use" in text
    assert "At fault: x. Y" in text
    ended = view.headline(ran(stopped="--steps", steps=5))
    assert ended.startswith("Fits so far in 23.64 GiB. The peak is 20.00 MiB")
    assert ended.endswith("(--steps ended it after 5 steps)")


def test_the_answer_leads_with_the_outcome_the_peak_and_what_is_left():
    fits = "Fits in 23.64 GiB. The peak is 20.00 MiB, which leaves 23.62 GiB"
    assert view.answer(ran(), None)[0] == fits
    refused = ran(fits=False, peak_reserved_bytes=CARD.total_bytes)
    first = view.answer(refused, None)[0]
    assert first == "Does not fit in 23.64 GiB. The peak was 23.64 GiB"


def test_a_program_that_fails_by_itself_is_said_to_lack_no_memory():
    whose = "the program: it raised an error of its own; run it on the CPU to compare"
    failed = ran(exit_code=1, error="ValueError: a bad width", whose=whose)
    first, second, *_ = view.answer(failed, None)
    assert first == "Failed, but not because GPU memory ran out: ValueError: a bad width"
    assert second.startswith("At fault: the program. It raised an error of its own")


def test_the_next_step_of_a_fit_is_to_decide_what_is_left_open():
    assert view.next_step(ran()) == "nothing to do"
    assert view.next_step(ran(stopped="--steps")) == "run it to its end, without --steps"
    assert "--held 600MiB" in view.next_step(ran(size=100 * MIB))
    assert "--cudnn-workspace" in view.next_step(ran(size=80 * MIB, more_bytes=64 * MIB))


def test_a_fit_says_whether_it_depends_on_the_context_that_no_rehearsal_counts():
    def context(**more):
        lines = view.answer(ran(**more), None)
        return " ".join(" ".join(lines).split())

    assert "there is room for it" in context()
    tight = context(size=20 * MIB + 600 * MIB)
    assert tight.startswith("May not fit in 620.00 MiB. The peak is 20.00 MiB, which leaves 600.00")
    assert "with which the program may not fit; --held 600MiB counts it" in tight
    ranks = (CardUse(0, {1: 10 * MIB, 2: 10 * MIB}, 20 * MIB),)
    both = context(size=20 * MIB + 1000 * MIB, devices=ranks)
    assert "may not fit" in both and "each of 2 processes" in both
    held = replace(CARD, held_bytes=600 * MIB)
    assert "--held" in context(device=held) and "may not fit" not in context(device=held)
    assert not any("context" in line for line in view.answer(ran(fits=False), None))


def test_a_program_that_grew_until_its_steps_ended_does_not_fit():
    title = "Your program keeps 1.00 GiB more each step; at this rate it fills the card in step 24"
    grows = Verdict("user-leak", "weak", NextStep("Keep less"), title=title, summary=title)
    lines = " ".join(view.answer(ran(stopped="--steps", steps=5), grows, ("Run", "casebook fix")))
    assert lines.startswith("Will not fit in 23.64 GiB for long. Your program keeps 1.00 GiB more")
    assert "in step 24 (--steps ended it after 5 steps)" in lines
    assert "Keep less" in lines and "casebook fix" in lines


def test_two_ends_of_what_hangs_on_values_are_one_line():
    low = ran()
    high = ran(fits=False, peak_reserved_bytes=40 * MIB)
    assert view.several([low]) == []
    [line] = view.several([low, high])
    assert "between 20.00 MiB (fits) and 40.00 MiB (runs out)" in line


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (SIZE, "NOT TO BE TRUSTED from train.py:3 step on: the size of the result of nonzero"),
        (
            read("_local", where="", times=4),
            "Not computed: what the program reads at the backward pass; it gets a placeholder",
        ),
        (read("_local", inside="grad_scaler.py"), "assumed: the loss scaler read no overflow"),
        ({"missing": ["ncclCommShrink"]}, "not rehearsed: NCCL"),
        (
            {"missing": ["cusolverDnCreate"]},
            "cuSOLVER's workspaces are not known and are counted as 0",
        ),
        (
            {"counts": {"transform_bytes": 4 * MIB}},
            "4,194,304 bytes, and may be up to 28.00 MiB more",
        ),
        (
            {"counts": {"launches": 1, "cudnn": 7}},
            "cuDNN's workspace is counted as 0 B in each of its calls, and may be up to 512",
        ),
        ({"counts": {"cudnn": 1}}, "may be up to 512.00 MiB more"),
        (
            {"counts": {"cudnn": 1, "convolution_bytes": 600 * MIB}},
            "may be up to 600.00 MiB more",
        ),
        ({"counts": {"collectives": 1}}, "4 MiB, unless NCCL_BUFFSIZE says otherwise"),
        ({"counts": {"managed": 5 * MIB}}, "5 MiB of managed memory were asked for"),
        ({"forks": 3}, "3 processes were forked"),
    ],
)
def test_what_a_rehearsal_cannot_know_is_named(more, says):
    assert says in trust(more)


def test_a_quiet_program_leaves_only_what_is_always_so():
    assert "\n" not in trust({}) and "outside of torch's allocator" in trust({})
    assert trust() == trust({}), "a program without Python reports nothing"
    assert reports.is_exact([QUIET]) and not reports.is_exact([QUIET, {**QUIET, **SIZE}])
    harmless = ["cuptiGetVersion", "cudaGetDriverEntryPoint"]
    assert trust({"missing": harmless}) == trust({})


@pytest.mark.parametrize("says", ["3 streams", "a CUDA build stands in for ROCm"])
def test_streams_and_rocm_are_named(says):
    assert says in trust({}, card=cards.find_card("7900xtx"), streams=3)


def test_the_answer_names_card_torch_failure_and_trust():
    words = (
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 10.00 MiB is "
        "free. Of the allocated memory 23.00 GiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    out = Oom(256 * MIB, 10 * MIB, ("train.py:3 step",), words)
    failed = ran(fits=False, oom=out, trust=("trust me", "not counted"))
    lines = " ".join(" ".join(view.answer(failed, None)).split())
    assert "Rehearsed on NVIDIA GeForce RTX 4090, 23.64 GiB, torch 2.14.1" in lines
    assert "Does not fit" in lines
    assert "train.py:3 step" in lines and "trust me" in lines
    assert "as far as the rehearsal can tell" in view.headline(ran(exact=False))


# The set-up, and the environment.


@pytest.fixture
def run(tmp_path):
    """The command, with a cache of its own."""
    parser, _ = cli.parsers("rehearse")
    own = ["rehearse", "--cache", str(tmp_path / "cache")]
    return lambda *words: rehearse.rehearse(parser.parse_args([*own, *words]))


def test_without_a_cuda_torch_one_line_names_the_command_and_the_size(run, tmp_path):
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    with refused(ValueError, "(--setup.*GB|GB.*--setup|is missing)"):
        run("--gpu", "t4", "--", str(bare), "-c", "1")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("words", "says"), [("", "no command"), ("--torch-python /no/python -- python x", "")]
)
def test_wrong_use_is_one_line(run, words, says):
    with refused(ValueError, says):
        run(*words.split())


def test_everything_is_taken_away_by_one_command_and_only_what_rehearsals_put_there(
    run, tmp_path, capsys
):
    place = tmp_path / "cache" / "torch-2.14.1-cp311"
    place.mkdir(parents=True)
    (place / "a.so").write_bytes(b"0" * (3 << 20))
    assert run("--remove") == 0 and not (tmp_path / "cache").exists()
    assert "3.00 MiB removed" in capsys.readouterr().out
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").write_text("years of work")
    with refused(ValueError, "not of a rehearsal"):
        run("--remove")
    assert (tmp_path / "cache" / "thesis.tex").exists()


def test_the_list_of_cards_needs_nothing(run, capsys):
    assert run("--gpu", "list") == 0
    assert "NVIDIA H200" in capsys.readouterr().out


def wheel(folder, version="2.14.1+cu130", cuda="'13.0'"):
    (folder / "torch" / "lib").mkdir(parents=True)
    text = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"
    (folder / "torch" / "version.py").write_text(text)
    (folder / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"")
    return folder


def test_only_a_cuda_build_is_one_to_rehearse_under(tmp_path):
    found = torches.read_torch(wheel(tmp_path / "a"))
    assert found and (found.version, found.is_users) == ("2.14.1+cu130", False)
    assert torches.read_torch(wheel(tmp_path / "b", "2.14.1+cpu", "None")) is None
    assert torches.read_torch(tmp_path / "nothing") is None


def test_the_program_keeps_its_environment_and_this_one_is_not_touched(tmp_path, monkeypatch):
    theirs = {"LD_PRELOAD": "/usr/lib/theirs.so", "PYTHONPATH": "/theirs"}
    for name, value in {**theirs, "CUDA_VISIBLE_DEVICES": "3"}.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    torch = torches.Torch(tmp_path, "2.14.1", is_users=False)
    made = environment(torch, [tmp_path / "libdevice.so"], CARD, tmp_path, None)
    assert made["LD_PRELOAD"].endswith("libdevice.so /usr/lib/theirs.so")
    assert made["PYTHONPATH"] == f"{INJECT}:{tmp_path}:/theirs"
    assert made["CUDA_VISIBLE_DEVICES"] == "0" and made["FAKE_VRAM_BYTES"] == str(CARD.total_bytes)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in made
    assert environment(torch, [], CARD, tmp_path, "")["PYTORCH_CUDA_ALLOC_CONF"] == ""
    assert dict(os.environ) == before


def test_no_compiler_is_one_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool, **_: None)
    with refused(torches.NotReady, "gcc is missing"):
        build.tools()


def test_too_little_room_and_a_pip_that_fails_are_one_line(tmp_path, monkeypatch):
    place = tmp_path / "torch-2.14.1-cp311"
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
        with refused(torches.NotReady, "5.00 MiB free"):
            torches.install(sys.executable, "2.14.1", place)
    with refused(
        torches.NotReady, "pip did not install torch===2.14.1 for false: .*Could not locate"
    ):
        torches.install("false", "2.14.1", place)
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_pip_gets_its_packages_by_the_workbooks(tmp_path):
    """As uv makes environments."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        for name, text in about.items():
            archive.writestr(f"tiny-1.0.dist-info/{name}", text)
    venv.create(tmp_path / "environment", with_pip=False)
    python = str(tmp_path / "environment/bin/python")
    torches.pip_install(python, [str(wheel)], tmp_path / "packages")
    assert (tmp_path / "packages/tiny.py").is_file()


def test_where_nobody_has_pip_uv_installs(tmp_path, monkeypatch):
    venv.create(tmp_path / "environment", with_pip=False)
    python = str(tmp_path / "environment/bin/python")
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n')
    uv.chmod(0o755)
    monkeypatch.setattr(torches.sys, "executable", python)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    torches.pip_install(python, ["tiny"], tmp_path / "packages")
    words = (tmp_path / "words").read_text().split()
    assert words[:5] == ["pip", "install", "--python", python, "-q"]
    assert words[-2:] == [str(tmp_path / "packages"), "tiny"]


def test_a_launcher_that_came_with_torch_runs_under_the_python_that_was_given(tmp_path):
    """Its first line names the Python that installed it."""
    launcher = tmp_path / "bin" / "launch"
    launcher.parent.mkdir()
    launcher.write_text("#!/usr/bin/python\n")
    launcher.chmod(0o755)
    torch = torches.Torch(tmp_path, "2.14.1", is_users=False)
    command, _ = run_module._located(["launch", "train.py"], sys.executable, torch)
    assert command == [sys.executable, str(launcher), "train.py"]


# The C file, where it can be built.


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    try:
        build.tools()
    except torches.NotReady as error:
        pytest.skip(f"not run because {error}")
    return build.device(tmp_path_factory.mktemp("device"))


def started(*argv, **environ):
    """A Python with more in its environment, ended."""
    more = {"CASEBOOK_PROGRAMS": PROGRAMS, **environ}
    env = {**os.environ, **{name: str(value) for name, value in more.items()}}
    argv = [sys.executable, *map(str, argv)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


PROGRAM = """
import ctypes, json, sys
d = ctypes.CDLL(sys.argv[1])
p, q, free, total = (ctypes.c_void_p() for _ in range(4))
size = ctypes.c_size_t
said = {"first": d.cudaMalloc(ctypes.byref(p), size(6 << 20)), "second": d.cudaMalloc(ctypes.byref(q), size(8 << 20))}
d.cudaGetLastError()
d.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
said["free"], said["total"] = free.value or 0, total.value
data, back = ctypes.create_string_buffer(b"abcd"), ctypes.create_string_buffer(4)
d.cudaMemcpy(p, data, ctypes.c_size_t(4), 1)
d.cudaMemcpy(back, p, ctypes.c_size_t(4), 2)
said["back"] = back.raw.decode()
heard = []
kind = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_char_p, ctypes.c_ulonglong)
hear = kind(lambda ops, count: heard.append([ops.decode(), count]) or 7)
d.fake_on_read(hear)
d.cudaMemcpy(back, p, ctypes.c_size_t(4), 2)
said["zero"], said["heard"] = list(back.raw), heard
props = ctypes.create_string_buffer(1100)
d.cudaGetDeviceProperties(props, 0)
said["name"] = props.value.decode()
said["freed"] = d.cudaFree(p), d.cudaFree(p)
pinned, plain, told = ctypes.c_void_p(), ctypes.create_string_buffer(8), (ctypes.c_int * 6)()

def kinds(*addresses):
    return [d.cudaPointerGetAttributes(told, ctypes.c_void_p(one)) or told[0] for one in addresses]

d.cudaHostAlloc(ctypes.byref(pinned), size(64), 0)
said["pinned"] = kinds(pinned.value + 63, pinned.value + 64, ctypes.addressof(plain))
d.cudaHostRegister(plain, size(8), 0)
said["pinned"] += kinds(ctypes.addressof(plain))
d.cudaHostUnregister(plain)
d.cudaFreeHost(pinned)
said["pinned"] += kinds(ctypes.addressof(plain), pinned.value)
print(json.dumps(said))
"""


def test_the_device_counts_bytes_moves_them_and_says_who_reads(library):
    card = {"FAKE_VRAM_BYTES": 12 * MIB, "FAKE_FOREIGN_BYTES": 2 * MIB, "FAKE_NAME": "A card"}
    said = json.loads(started("-c", PROGRAM, library, **card).stdout)
    assert said == {
        "first": 0,
        "second": 2,
        "free": 4 * MIB,
        "total": 12 * MIB,
        "back": "abcd",
        "zero": [7, 0, 0, 0],
        "heard": [["", 4]],
        "name": "A card",
        "freed": [0, 1],
        "pinned": [
            1,
            0,
            0,
            1,
            0,
            0,
        ],  # 1: pinned memory of the host, 0: memory that CUDA does not know
    }


READER = """import ctypes
d, p, back, size = ctypes.CDLL(None), ctypes.c_void_p(), ctypes.create_string_buffer(8), ctypes.c_size_t
d.cudaMalloc(ctypes.byref(p), size(64))
def step():
    d.cudaMemcpy(back, p, size(8), 2)
step()
step()
raise ValueError('the end')
"""


def test_the_witness_tells_reads_by_line_and_the_error_that_ended_it(library, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(READER)
    done = started(program, LD_PRELOAD=library, PYTHONPATH=INJECT, CASEBOOK_REHEARSE=tmp_path)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ValueError: the end")
    [kept] = tmp_path.glob("rehearsal_*.report")
    said = json.loads(kept.read_text())
    assert said["reads"] == read("copy", where="train.py:5 step", times=2)["reads"]
    assert (said["error"], said["message"]) == ("ValueError", "the end")
    [frame] = said["frames"]
    assert frame == {"filename": str(program), "line": 8, "name": "<module>"}


def test_a_loop_that_reads_the_device_is_named_while_it_runs_and_ends_at_its_limit(
    library, tmp_path
):
    program = tmp_path / "waits.py"
    program.write_text(READER.replace("step()\nstep()\n", "while True: step()\n"))
    ends = {"CASEBOOK_SECONDS": 1.5, "CASEBOOK_REHEARSE": tmp_path}
    done = started(program, LD_PRELOAD=library, PYTHONPATH=INJECT, **ends)
    assert done.returncode == 0
    assert "waits.py:5 step has read 1,000 values" in done.stderr and "--seconds" in done.stderr
    [kept] = tmp_path.glob("rehearsal_*.report")
    assert json.loads(kept.read_text())["stopped"] == "--seconds"


def test_the_witness_is_silent_where_there_is_no_device(tmp_path):
    done = started("-c", "print('as ever')", PYTHONPATH=INJECT, CASEBOOK_REHEARSE=tmp_path)
    assert (done.stdout, done.stderr) == ("as ever\n", "") and not list(tmp_path.iterdir())


def test_the_proof_names_every_model_precision_optimizer_and_feature(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import rehearse_proof as proof

    rows = proof.rows()
    all_of = {(m, p, o) for m in proof.MODELS for p in proof.PRECISIONS for o in proof.OPTIMIZERS}
    assert {row[:3] for row in rows} >= all_of
    features = {(model, feature) for model in proof.MODELS for feature in proof.FEATURES}
    assert {(row[0], row[3]) for row in rows} == features


RECORDS = """
import ctypes, json, sys
d, out = ctypes.CDLL(sys.argv[1]), []
for ask, size in ((d.cudaGetDeviceProperties_v2, 1032), (d.cudaGetDeviceProperties, 1008)):
    record = ctypes.create_string_buffer(size)
    ask(record, 0)
    out.append(record.raw.hex())
number = ctypes.c_int()
attributes = {}
for at in range(1, 126):
    d.cudaDeviceGetAttribute(ctypes.byref(number), at, 0)
    attributes[at] = number.value
p = ctypes.c_void_p()
d.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(6 << 20))
d.cudaFree(p)
print(json.dumps([out, attributes]), flush=True)
ctypes.string_at(0)
"""


def test_every_property_stands_where_both_releases_look_and_the_peak_outlives_a_crash(
    library, tmp_path
):
    """torch divides by the threads and the blocks of a multiprocessor: a place of 0 there ends the program."""
    card = {
        "FAKE_CC": 103,
        "FAKE_SM_BLOCKS": 24,
        "FAKE_SM_THREADS": 1536,
        "FAKE_SMS": 128,
        "FAKE_PEAKS": tmp_path,
    }
    done = started("-c", RECORDS, library, **card)
    assert done.returncode == -signal.SIGSEGV
    (older, newer), attributes = json.loads(done.stdout)
    rows = re.findall(
        r"^P\((\w+), (-?\d+), (-?\d+), (\d), (\d+), (.+)\)$", DEVICE_ROWS, re.MULTILINE
    )
    assert len(rows) > 50

    def at(record, place, width):
        return int.from_bytes(bytes.fromhex(record)[place : place + width], "little")

    for name, *numbers, value in rows:
        place12, place13, width, attribute = map(int, numbers)
        places = [(older, place12), (newer, place13)]
        seen = {at(record, place, width) for record, place in places if place >= 0}
        seen |= {attributes[str(attribute)]} if attribute and width == 4 else set()
        assert len(seen) == 1, name
        assert seen != {0} or value in ("0", "dev"), name
    assert attributes["106"] == 24 and at(older, 712, 4) == at(newer, 688, 4) == 24
    [holder], together = holders.holders_of(tmp_path)
    assert holder.peaks[0] == together[0] == 6 * MIB


RANK = """
import ctypes, sys
d, rank, size = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), ctypes.c_size_t
name = type("Id", (ctypes.Structure,), {"_fields_": [("raw", ctypes.c_char * 128)]})(b"meeting")
comm, half, back = (ctypes.c_void_p() for _ in range(3))
assert not d.ncclCommInitRank(ctypes.byref(comm), 3, name, rank)
word = ctypes.create_string_buffer(b"root" if rank == 1 else b"", 4)
d.ncclBroadcast(word, word, size(4), 0, 1, comm, None)
own, all_of_it = ctypes.create_string_buffer(b"%d." % rank, 2), ctypes.create_string_buffer(6)
d.ncclAllGather(own, all_of_it, size(2), 0, comm, None)
d.ncclGroupStart()
other = ctypes.create_string_buffer(2)
d.ncclRecv(other, size(2), 0, (rank + 1) % 3, comm, None)
d.ncclSend(own, size(2), 0, (rank - 1) % 3, comm, None)
d.ncclGroupEnd()
d.ncclCommSplit(comm, rank % 2, -rank, ctypes.byref(half), None)
there, managed = (ctypes.c_int * 2)(), ctypes.c_void_p()
d.ncclCommCount(half, there)
d.ncclCommUserRank(half, ctypes.byref(there, 4))
assert not d.cudaMallocManaged(ctypes.byref(managed), size(5 << 20), 1)
ctypes.memset(managed, 7, 5 << 20)
print(word.raw, all_of_it.raw, other.raw, *there, d.cudaFree(managed), d.fake_count(12) >> 20, flush=True)
"""


def test_ranks_send_each_other_what_is_small_and_managed_memory_is_the_hosts(library, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(started, "-c", RANK, library, str(rank), FAKE_PEAKS=tmp_path)
            for rank in range(3)
        ]
        said = [job.result().stdout.split() for job in jobs]
    assert [row[:2] for row in said] == [["b'root'", "b'0.1.2.'"]] * 3
    assert [row[2] for row in said] == ["b'1.'", "b'2.'", "b'0.'"]
    # Ranks 0 and 2 are of one colour, and the higher comes first by its key.
    assert [row[3:5] for row in said] == [["2", "1"], ["1", "0"], ["2", "0"]]
    assert [row[5:] for row in said] == [["0", "5"]] * 3
    assert not [*tmp_path.glob("nccl-*")]


def test_what_nobody_wrote_by_hand_answers_by_name_and_fills_what_it_must():
    assert "return 801" in build._stand_in("cudaMemPrefetchAsync_v2")
    assert 'fake_missing("cuGraphicsMapResources")' in build._stand_in("cuGraphicsMapResources")
    for name, written in {
        "cusolverDnDgesvd_bufferSize": "*(int *)a3 = 0",
        "cusolverDnXgeev_bufferSize": "*(size_t *)a18 = 0",
        "cusolverDnCreateParams": "*(void * *)a0 = calloc",
        "cuptiGetResultString": "*(const char * *)a1 =",
    }.items():
        assert written in build._stand_in(name) and "return 0" in build._stand_in(name)
    listed = (words.HERE / "symbols.txt").read_text().split()
    assert {"cudaMemPrefetchAsync", "cuMemPrefetchAsync", "nvmlDeviceGetPowerUsage"} <= {*listed}


def test_the_settings_of_a_box_are_those_of_its_rehearsal_unless_others_are_given():
    settings = settings_of("rx7900xt-container")
    conf = settings.conf
    extra = settings.extra
    [line] = settings.taken
    assert "expandable_segments:True" in conf and "PYTORCH_HIP_ALLOC_CONF" in line
    assert not extra
    assert settings_of("rx7900xt-container", conf="") == BoxSettings("", {})
    assert settings_of("cuda-healthy") == BoxSettings(None, {})

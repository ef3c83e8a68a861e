"""Rehearsals, as far as they go without a CUDA build of torch: cards, arguments, what a program told of itself, the C file."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.commands import rehearse as command
from helpers.commands.use import WrongUse
from helpers.load.rehearse import build, devices, study, values
from helpers.load.rehearse.rehearse import WITNESS, Oom, Rehearsal, environment
from helpers.load.remedies import FixRow, Remedy
from helpers.load.workloads import workload
from helpers.look.boxes import open_box
from helpers.settings.presets import Preset

MIB = 1 << 20
CARD = devices.device("4090")
QUIET = {
    "pid": 1,
    "forks": 0,
    "error": "",
    "message": "",
    "frames": [],
    "missing": [],
    "counts": {"launches": 5, "cudnn": 0},
    "reads": [],
}


def ran(size=CARD.total_bytes, fits=True, **more):
    made = Rehearsal(
        replace(CARD, total_bytes=size),
        "2.14.1",
        "",
        int(not fits),
        1.0,
        10,
        20 * MIB,
        0,
        int(not fits),
        None,
        None,
        "",
        "",
        True,
        (),
        (),
    )
    return replace(made, **more)


# Cards.


def test_every_card_has_a_source_and_figures_that_can_be():
    for key, card in devices.TABLE.items():
        assert card.source and key == key.lower()
        assert 8 << 30 < card.total_bytes < 300 << 30
        assert 70 <= card.capability <= 120 and card.multiprocessors > 20 and card.l2_mib > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("5000",), "expected one of t4"),
        (("", ""), "no card"),
        (("", "much"), "size 'much'"),
        (("t4", "", "20GiB"), "nothing is left"),
        (("", "8GiB", "-1"), "size '-1'"),
    ],
)
def test_a_card_that_cannot_be_is_refused_in_one_line(arguments, says):
    with pytest.raises(devices.DeviceError) as error:
        devices.device(*arguments)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_size_alone_is_a_card_and_what_others_hold_comes_off_it():
    card = devices.device("", "20GiB", "1GiB")
    assert (card.total_bytes, card.held_bytes, card.capability) == (20 << 30, 1 << 30, 90)
    assert "held by others" in card.words


def test_the_card_of_a_box_has_the_boxs_size_and_what_is_in_use():
    card = devices.device(bundle=open_box("cuda-24gb-tuning"))
    assert 20 << 30 < card.total_bytes < 26 << 30 and card.vendor == "cuda" and "box" in card.source
    assert devices.device(bundle=open_box("strix-halo-1-found")).vendor == "rocm"
    with pytest.raises(devices.DeviceError, match="no GPU memory"):
        devices.device(bundle=open_box("cpu-only"))


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
    assert study.start_of(words, dashes + "batch") == value
    changed = study.with_argument(words, dashes + "batch", new)
    assert study.start_of(changed, "batch") == new and len(changed) == len(words)
    assert sum(old != now for old, now in zip(words, changed, strict=True)) == int(new != value)


@pytest.mark.parametrize(
    "words",
    [["train.py"], ["--batch"], ["train.py", "--batch", "eight"], ["train.py", "--batch", "0"]],
)
def test_an_argument_that_is_not_there_or_no_number_is_refused(words):
    with pytest.raises(study.SearchError, match="--find-batch batch"):
        study.start_of(words, "batch")


# Searches.


@given(limit=st.integers(1, 5000), start=st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_the_largest_batch_is_the_last_that_fits(limit, start):
    found = study.find_batch(lambda batch: ran(fits=batch <= limit), start)
    assert (found.best, found.beyond) == (limit, limit + 1)
    assert len(found.runs) < 30


def test_no_batch_fits():
    assert study.find_batch(lambda batch: ran(fits=False), 8).best is None


@given(needs=st.integers(1, 4000), peak=st.integers(0, 3000), held=st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_the_smallest_card_finishes_and_one_granule_less_does_not(needs, peak, held):
    needs, peak, held = 2 * MIB * (needs + held), 2 * MIB * (needs + peak), 2 * MIB * held
    found = study.find_capacity(
        lambda size: ran(size, size >= needs, peak_reserved_bytes=peak), held
    )
    assert found.best == needs and found.beyond == needs - 2 * MIB


def test_a_program_that_fails_for_another_reason_is_no_out_of_memory():
    with pytest.raises(study.SearchError, match="without running out of memory: NameError"):
        study.find_batch(lambda batch: ran(exit_code=1, error="NameError: x"), 4)
    with pytest.raises(study.SearchError, match="reserved nothing"):
        study.find_capacity(lambda size: ran(peak_reserved_bytes=0))


def test_presets_are_given_as_settings_and_fill_the_fix_tables_column():
    seen = []
    runs = study.against(
        lambda conf, extra: seen.append((conf, dict(extra))) or ran(fits=bool(conf)),
        [
            Preset(
                "a",
                {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1"},
                {},
                (),
            )
        ],
    )
    assert seen == [("", {}), ("expandable_segments:True", {"OMP_NUM_THREADS": "1"})]
    column = study.measured_column(
        [Remedy("one", "says", "predicted", preset="a"), Remedy("two", "says", "predicted")], runs
    )
    assert (
        list(column) == ["one"]
        and "measured by the real allocator" in column["one"]
        and "runs out" in column["one"]
    )
    rows = [
        FixRow(name, "", (), "predicted", "not tried", "", "predicted") for name in ("one", "two")
    ]
    assert [row.measured for row in study.with_measured(rows, column)] == [
        column["one"],
        "not tried",
    ]


# What it is told of the program.


def told(**more):
    return values.trust([{**QUIET, **more}], CARD, 1)


def read(op, sizes=False, inside="", where="train.py:3 step", times=1):
    return {"op": op, "sizes": sizes, "inside": inside, "where": where, "times": times}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"reads": [read("nonzero", True)]},
            "NOT TO BE TRUSTED from train.py:3 step on: the size of what nonzero gives",
        ),
        (
            {"reads": [read("_local_scalar_dense", where="", times=4)]},
            "the backward pass (local_scalar_dense, 4 times)",
        ),
        (
            {"reads": [read("_local_scalar_dense", inside="grad_scaler.py")]},
            "assumed: the loss scaler read no overflow",
        ),
        ({"missing": ["ncclGetVersion", "ncclGetUniqueId"]}, "not rehearsed: NCCL"),
        ({"missing": ["cufftCreate"]}, "not rehearsed: cuFFT"),
        (
            {"error": "AcceleratorError", "message": "CUDA error: invalid device ordinal"},
            "it asked for a second GPU",
        ),
        ({"counts": {"launches": 1, "cudnn": 7}}, "each of 7 cuDNN calls needs 0 bytes"),
        ({"forks": 3}, "3 processes were forked"),
    ],
)
def test_what_a_rehearsal_cannot_know_is_named(more, says):
    assert any(says in line for line in told(**more)), told(**more)


def test_a_quiet_program_leaves_only_what_is_always_so():
    assert len(told()) == 1 and "outside of torch's allocator" in told()[0]
    assert values.exact([QUIET]) and not values.exact(
        [QUIET, {**QUIET, "reads": [read("nonzero", True)]}]
    )
    assert told(missing=["cuptiGetVersion", "ncclGetVersion", "cudaGetDriverEntryPoint"]) == told()


def test_streams_several_processes_and_rocm_are_said():
    rocm = devices.device("7900xtx")
    lines = "\n".join(values.trust([QUIET, QUIET], rocm, 3))
    assert (
        "3 streams" in lines
        and "2 processes used the GPU" in lines
        and "stands in for ROCm" in lines
    )


def test_the_answer_names_card_torch_failure_and_trust():
    words = (
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 10.00 MiB is "
        "free. Of the allocated memory 23.00 GiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    out = Oom(256 * MIB, 10 * MIB, ("train.py:3 step",), words)
    lines = "\n".join(command.told(ran(fits=False, oom=out, trust=("trust me",))))
    assert "rehearsed on NVIDIA GeForce RTX 4090, 23.64 GiB, torch 2.14.1: does not fit" in lines
    assert "train.py:3 step" in lines and "read as:" in lines and "trust me" in lines
    assert "caught it" in "\n".join(command.told(ran(fits=False, oom=replace(out, message=""))))
    assert "as far as that can be told" in command.told(ran(exact=False))[0]


# The set-up, and the environment.


def arguments(tmp_path, *words):
    made = {}

    def verb(name, run, says):
        made["parser"], made["run"] = argparse.ArgumentParser(), run
        made["parser"].add_argument("--json", action="store_true")
        return made["parser"]

    command.register(verb)
    return made["run"](made["parser"].parse_args(["--cache", str(tmp_path / "cache"), *words]))


def test_without_a_cuda_torch_one_line_names_the_command_and_the_size(tmp_path):
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(WrongUse) as error:
        arguments(tmp_path, "--gpu", "t4", "--", str(bare), "-c", "1")
    told = str(error.value)
    assert "\n" not in told and not (tmp_path / "cache").exists()
    assert ("--setup" in told and "GB" in told) or "is missing" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [((), "no command"), (("--torch-python", "/no/python", "--", "python", "x"), "")],
)
def test_wrong_use_is_one_line(tmp_path, words, says):
    with pytest.raises(WrongUse) as error:
        arguments(tmp_path, *words)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_everything_is_taken_away_by_one_command_and_only_what_rehearsals_put_there(
    tmp_path, capsys
):
    (tmp_path / "cache" / "torch-2.14.1-cp311").mkdir(parents=True)
    (tmp_path / "cache" / "torch-2.14.1-cp311" / "a.so").write_bytes(b"0" * (3 << 20))
    assert arguments(tmp_path, "--remove") == 0 and not (tmp_path / "cache").exists()
    assert "3 MiB removed" in capsys.readouterr().out
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").write_text("years of work")
    with pytest.raises(WrongUse, match="not of a rehearsal"):
        arguments(tmp_path, "--remove")
    assert (tmp_path / "cache" / "thesis.tex").exists()


def test_the_list_of_cards_needs_nothing(tmp_path, capsys):
    assert arguments(tmp_path, "--gpu", "list") == 0
    assert "NVIDIA H200" in capsys.readouterr().out


def wheel(folder, version="2.14.1+cu130", cuda="'13.0'"):
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(
        f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"
    )
    (folder / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"")
    return folder


def test_only_a_cuda_build_is_one_to_rehearse_under(tmp_path):
    found = build.read(wheel(tmp_path / "a"))
    assert found and (found.version, found.own) == ("2.14.1+cu130", False)
    assert build.read(wheel(tmp_path / "b", "2.14.1+cpu", "None")) is None
    assert build.read(tmp_path / "nothing") is None


def test_the_program_keeps_its_environment_and_this_one_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/theirs.so")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    before = dict(os.environ)
    torch = build.Torch(tmp_path, "2.14.1", own=False)
    made = environment(torch, [tmp_path / "libdevice.so"], CARD, tmp_path, None)
    assert made["LD_PRELOAD"].endswith("libdevice.so /usr/lib/theirs.so") and made[
        "PYTHONPATH"
    ].endswith(f"{tmp_path}:/theirs")
    assert made["CUDA_VISIBLE_DEVICES"] == "0" and made["FAKE_VRAM_BYTES"] == str(CARD.total_bytes)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in made
    assert environment(torch, [], CARD, tmp_path, "")["PYTORCH_CUDA_ALLOC_CONF"] == ""
    assert dict(os.environ) == before


def test_a_notebook_without_a_torch_to_rehearse_under_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(study.build, "own_torch", lambda python: (None, "cp311"))
    header, row = study.on_cards({"training": workload("training")}, ["t4"])
    assert len(header) == len(row) and row[2].startswith("not run because")
    rows = study.measured_rows(
        [FixRow("one", "", (), "p", "not tried", "", "predicted")],
        [Remedy("one", "says", "predicted", preset="cuda-expandable")],
        workload("training"),
        1 << 30,
    )
    assert rows[0].measured.startswith("not rehearsed because")


# The C file, where it can be built.


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    try:
        build.tools()
    except build.NotReady as error:
        pytest.skip(f"not run because {error}")
    return build.device(tmp_path_factory.mktemp("device"))


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
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_ulonglong)
hear = kind(lambda ops, count: heard.append([ops.decode(), count]) or 1)
d.fake_on_read(hear)
d.cudaMemcpy(back, p, ctypes.c_size_t(4), 2)
said["zero"], said["heard"] = list(back.raw), heard
version, name = ctypes.c_int(), ctypes.create_string_buffer(256)
props = ctypes.create_string_buffer(1100)
d.cudaGetDeviceProperties(props, 0)
said["name"] = props.value.decode()
said["freed"] = d.cudaFree(p), d.cudaFree(p)
print(json.dumps(said))
"""


def test_the_device_counts_bytes_moves_them_and_says_who_reads(library):
    env = {
        **os.environ,
        "FAKE_VRAM_BYTES": str(12 << 20),
        "FAKE_FOREIGN_BYTES": str(2 << 20),
        "FAKE_NAME": "A card of mine",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert (said["first"], said["second"], said["free"], said["total"]) == (0, 2, 4 << 20, 12 << 20)
    assert said["back"] == "abcd" and said["zero"] == [0, 0, 0, 0] and said["heard"] == [["", 4]]
    assert said["name"] == "A card of mine" and said["freed"] == [0, 1]


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
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "PYTHONPATH": str(WITNESS),
        "CASEBOOK_REHEARSE": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ValueError: the end")
    [kept] = tmp_path.glob("rehearsal_*.told")
    said = json.loads(kept.read_text())
    assert said["reads"] == [
        {"op": "copy", "sizes": False, "inside": "", "where": "train.py:5 step", "times": 2}
    ]
    assert (said["error"], said["message"], said["frames"]) == (
        "ValueError",
        "the end",
        ["train.py:8 <module>"],
    )


def test_the_witness_is_silent_where_there_is_no_device(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(WITNESS), "CASEBOOK_REHEARSE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "print('as ever')"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("as ever\n", "") and not list(tmp_path.iterdir())


def test_the_proof_names_every_model_precision_optimizer_and_feature():
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import rehearse_proof as proof
    finally:
        sys.path.pop(0)
    rows = proof.rows()
    assert {row[:3] for row in rows} >= {
        (m, p, o) for m in proof.MODELS for p in proof.PRECISIONS for o in proof.OPTIMIZERS
    }
    assert {(row[0], row[3]) for row in rows} == {
        (m, f) for m in proof.MODELS for f in proof.FEATURES
    }


def test_no_compiler_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool, **_: None)
    with pytest.raises(build.NotReady, match="gcc is missing"):
        build.tools()


def test_too_little_room_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
    with pytest.raises(build.NotReady, match="5 MiB free"):
        build.install(sys.executable, "2.14.1", tmp_path / "torch-2.14.1-cp311")

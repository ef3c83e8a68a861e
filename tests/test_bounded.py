"""What comes from elsewhere is bounded: no file keeps a verb busy for ever, and none reaches the terminal unspelt."""

import gzip
import json
import lzma
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading

import pytest
from command_line import verb
from run_stand_in import ROOT

from helpers.look import kernel_log, text_file
from helpers.look.bundle import BundleWriter, open_bundle
from helpers.look.gpus import gpus
from helpers.look.layers import MOST_GPUS
from helpers.look.messages import read_message
from helpers.look.nvidia import XML

HEAD = '<?xml version="1.0" ?>\n<nvidia_smi_log>\n'
GPU = '<gpu id="{:08X}:{:02X}:00.0"><product_name>X</product_name></gpu>\n'
MAIN = str(ROOT / "helpers" / "__main__.py")


def bundle(folder, box="b", **items):
    writer = BundleWriter(box, "recorded", "1", "2026-01-01T00:00:00Z")
    for source, text in items.items():
        writer.add("command", {"xml": XML, "log": "dmesg"}[source], text)
    return writer.write(folder)


@pytest.mark.parametrize(
    "words",
    [
        "vpoc {}",
        "replay {}",
        "whatif {} --capacity 8GiB",
        "run {} --dry-run",
        "diagnose --case {}",
        "diagnose {}",
        "gate --since {}",
    ],
)
def test_an_input_without_an_end_is_refused_in_one_line(tmp_path, words):
    os.mkfifo(tmp_path / "pipe")
    for endless in ("/dev/zero", tmp_path / "pipe"):
        done = verb(*words.format(endless).split())
        assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
        assert re.search("not a regular file|no such file", done.err)


def test_of_a_text_that_is_too_long_the_beginning_and_the_end_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "MOST_BYTES", 1 << 18)
    monkeypatch.setattr(text_file, "END_BYTES", 1 << 18)
    refused = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB.\n"
    filler = "the loss of a step\n" * 10_000
    text = (
        refused.format(1400)
        + filler
        + filler
        + refused.format(2600)
        + 7 * filler
        + refused.format(3800)
    )
    (tmp_path / "log").write_text(text)
    (tmp_path / "case").write_text(json.dumps({"evidence": {"error_text": text}}))
    writer = BundleWriter("b", "recorded", "1", "2026-01-01T00:00:00Z")
    writer.add("file", "message", text)
    writer.write(tmp_path / "bundle")
    where = {"--message": "log", "--case": "case", "": "bundle"}
    answers = [
        verb("diagnose", *filter(None, [how]), tmp_path / at, "--wide") for how, at in where.items()
    ]
    for shown in (" ".join(done.out.split()) for done in answers):
        assert "3800 MiB" in shown and "2600 MiB" not in shown
        assert "Not used: only the first" in shown
    end, begin = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(begin, text.encode()), os.close(begin)))
    writer.start()
    piped = text_file.read_text("-", end)
    writer.join()
    os.close(end)
    assert "1400 MiB" in piped.text and "3800 MiB" in piped.text and "2600 MiB" not in piped.text
    assert "and the last" in piped.note


def test_a_fifo_that_is_left_after_its_time_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "MOST_S", 0.0)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, b"a line\n" * 1000)
    read = text_file.read_text(str(path))
    os.close(writer)
    assert read.text == "a line\n" * 1000
    assert read.note == "after 0 s reading stopped: what came before was read"


def test_a_pipe_that_was_read_whole_is_whole(monkeypatch):
    monkeypatch.setattr(text_file, "MOST_BYTES", 1 << 16)
    monkeypatch.setattr(text_file, "END_BYTES", 1 << 18)
    data = b"the loss of a step\n" * 10_000
    end, begin = os.pipe()
    with open(end, "rb") as reader:
        writer = threading.Thread(target=lambda: (os.write(begin, data), os.close(begin)))
        writer.start()
        read = text_file.read_text("-", reader.fileno())
        writer.join()
    assert read.text == data.decode() and read.note == ""


def test_a_log_of_nothing_but_failures_is_read_to_its_end_without_reading_each(tmp_path):
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} MiB.\n"
    text = line.format(5) * 20_000 + line.format(77)
    got = read_message(text)
    assert [one.requested.bytes >> 20 for one in got.messages] == [5, 77]
    assert "characters before its end, after so many messages" in got.unused


@pytest.mark.parametrize("device", ["/dev/kmsg", "/proc/kmsg"])
def test_a_device_that_gives_record_by_record_and_never_ends_is_an_answer(device):
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:  # also where its mode says otherwise: dmesg_restrict
        pytest.skip("this user may not read it")
    done = verb("diagnose", "--message", device)
    assert done.code == 0 or (done.code, done.err.count("\n")) == (2, 1)
    assert "nothing came for 1 s" in " ".join((done.out + done.err).split())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("zeros.jsonl.xz", lzma.compress(bytes(65 << 20), preset=0), "replay {}"),
        ("zeros.tar.gz", gzip.compress(bytes(65 << 20), 1), "diagnose {}"),
        ("deep.json", b"[" * 200_000, "diagnose --case {}"),
        ("deep.ipynb", b'{"cells":' + b"[" * 200_000, "share {}"),
        ("deep.yaml", b"[" * 100_000, "run {} --dry-run"),
        ("blocks.yaml", b"name: x\nruns:\n" + b"- " * 20_000 + b"x\n", "run {} --dry-run"),
        ("marks.pickle", b"\x80\x04" + b"(" * 1_000_000, "diagnose {}"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_is_deep_or_grows_when_it_is_unpacked_is_refused_in_one_line(
    tmp_path, name, content, words
):
    (tmp_path / name).write_bytes(content)
    done = verb(*words.format(tmp_path / name).split())
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1


def test_a_table_of_trades_that_is_none_is_refused_in_one_line(tmp_path):
    # A carriage return alone, and a short row that is no UTF-8.
    for number, raw in enumerate([b"price,\rvolume\n1,2\n", b"price,volume\n\xff\xdc\n" * 3]):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(raw)
        done = subprocess.run(
            [sys.executable, MAIN, "vpoc", path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


def test_a_deep_xml_and_more_gpus_than_a_box_holds_end_at_once(tmp_path):
    assert gpus(open_bundle(bundle(tmp_path / "deep", xml=HEAD + "<gpu>" * 200_000))) == ()
    many = "".join(GPU.format(at // 200, at % 200) for at in range(MOST_GPUS + 1))
    done = verb("diagnose", bundle(tmp_path / "many", xml=HEAD + many + "</nvidia_smi_log>"))
    assert done.code == 2 and f"{MOST_GPUS + 1} GPUs" in done.err


def test_of_a_kernel_log_that_is_too_long_the_end_is_read(monkeypatch):
    monkeypatch.setattr(kernel_log, "LOG_LIMIT", 2000)
    line = "[    1.0] Out of memory: Killed process {} (python) total-vm:1kB, anon-rss:1kB"
    found = kernel_log.parse("\n".join(line.format(number) for number in range(1, 101)))
    assert len(found) < 30 and found[-1].pid == found[-1].line == 100


def test_a_verdict_says_that_a_kernel_log_was_read_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "LOG_LIMIT", 2000)
    line = "[    1.0] Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:1kB\n"
    for lines, says in ((10, ""), (100, f" was read from its end: {25 * len(line)} of ")):
        place = bundle(tmp_path / str(lines), log=line * lines)
        done = verb("diagnose", place, "--json")
        summary = json.loads(done.out)["summary"]
        assert says in summary and ("from its end" in summary) == bool(says)
        if says:
            assert f"of {lines * len(line)} bytes." in summary
        assert " ".join(verb("diagnose", place).out.split()).count(
            "Not used: The kernel log (dmesg) was read from its end"
        ) == bool(says)


def test_keys_whose_hashes_can_be_chosen_are_refused(tmp_path):
    path = tmp_path / "a.pickle"
    for key in (7, (1 << 61) - 1, 1 << 80, 1.5):
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], key: 0}))
        done = verb("diagnose", path)
        assert done.code == 2 and "a key at byte" in done.err


def test_the_head_of_a_bundle_reaches_no_terminal_unspelt(tmp_path):
    for number, name in enumerate(("b\x1b]0;PWNED\x07\x1b[2J\n# x", "b\ud800x")):
        done = verb("ttm", bundle(tmp_path / str(number), box=name))
        assert done.code == 0 and "\x1b" not in done.out and "\x07" not in done.out
        assert done.out.startswith(("b\\x1b]0;PWNED\\x07\\x1b[2J\\x0a# x:", "b\\ud800x:"))


@pytest.mark.parametrize(
    ("shell", "code", "says"),
    [
        ('"$@" > /dev/full', 2, "standard output: No space left on device"),
        ('"$@" >&-', 2, "standard output is closed"),
        ('"$@" >&- 2>&-', 2, ""),
        ('PYTHONIOENCODING=ascii "$@" > /dev/null', 0, ""),
        ('LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "$@" > /dev/null', 0, ""),
    ],
)
def test_any_standard_output_ends_in_an_answer_or_in_one_line(shell, code, says):
    command = ["sh", "-c", shell, "sh", sys.executable, MAIN, "ttm", "strix-halo-1-found"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code and says in done.stderr
    assert done.stderr.count("\n") == bool(says)


@pytest.mark.parametrize("words", ["", "--help", "diagnose --help", "capture --help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_help_that_cannot_be_written_ends_in_one_line(words, unbuffered):
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        argv = [sys.executable, MAIN, *words.split()]
        how = {"stdout": full, "env": env}
        done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False, **how)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "standard output: No space left on device" in done.stderr


def test_a_record_that_is_none_is_named_at_once_and_status_says_that_nothing_can_be_read(tmp_path):
    records = {"zero": "/dev/zero", "pipe": None, "many": {"attempt": 99999999999999999999}}
    for name, target in records.items():
        (tmp_path / "b" / name).mkdir(parents=True)
        record = tmp_path / "b" / name / "run.json"
        if isinstance(target, str):
            record.symlink_to(target)
        elif target is None:
            os.mkfifo(record)
        else:
            fields = {"run_id": "many", "batch_id": "b", "box": "", "notebook": "x.ipynb"}
            record.write_text(json.dumps({"schema_version": 2, **fields, **target}))
    done = verb("status", tmp_path / "b")
    assert done.code == 1 and "no record can be read" in done.out
    assert all(f"{name}/run.json" in done.out for name in records)
    assert "a pipe, not a regular file" in done.out and "attempt" in done.out


def test_a_record_of_a_million_keys_is_named_without_a_report_on_each(tmp_path):
    for name, raw in (
        ("keys", '{"a":1' + ',"b":1' * 100_001 + "}"),
        ("rows", "[1" + ",1" * 100_001 + "]"),
    ):
        (tmp_path / "b" / name).mkdir(parents=True)
        (tmp_path / "b" / name / "run.json").write_text(raw)
    done = verb("status", tmp_path / "b")
    assert done.code == 1 and done.out.count("more than 100,000 values; expected a record") == 2


def test_a_page_is_written_into_a_batch_alone(tmp_path):
    (tmp_path / "index.html").write_text("precious")
    for words in ("report", "status"):
        done = verb(words, tmp_path)
        assert done.code == 2 and "contains no plan and no run" in done.err
    assert (tmp_path / "index.html").read_text() == "precious"


def test_a_folder_that_the_user_names_keeps_its_mode_and_what_is_written_there_is_the_owners(
    tmp_path,
):
    tmp_path.chmod(0o755)
    command = [sys.executable, MAIN, "gate", "--settle", "0", "--save"]
    for out, mode in ((tmp_path / "x", 0o600), (tmp_path.parent / "kept.json", 0o644)):
        env = {**os.environ, "CASEBOOK_OUTPUTS": str(tmp_path)}
        subprocess.run([*command, out], env=env, capture_output=True, umask=0o022, check=False)
        assert out.stat().st_mode & 0o777 == mode
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_batch_is_its_owners_alone_wherever_it_lies(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text("name: x\nruns:\n- {notebook: none.ipynb}\n")
    source = ROOT / "tests/notebooks/needs_no_verdict.ipynb"
    shutil.copy(source, tmp_path / "none.ipynb")
    named = tmp_path / "named"
    command = [sys.executable, MAIN, "run", str(plan), "--out", str(named)]
    done = subprocess.run(command, capture_output=True, text=True, umask=0o022, check=False)
    assert done.returncode == 0, done.stderr
    (batch,) = named.iterdir()
    modes = {path.stat().st_mode & 0o077 for path in [batch, *batch.rglob("*")]}
    assert modes == {0} and (batch / "index.html").exists()


@pytest.mark.slow
def test_a_batch_leaves_nothing_at_home_and_what_it_leaves_is_its_owners_alone(tmp_path):
    home = tmp_path / "home"
    out = ROOT / "outputs" / f"test-{os.getpid()}"
    home.mkdir()
    out.mkdir(mode=0o700, parents=True)
    plan = tmp_path / "plan.yaml"
    own = tmp_path / "own.py"
    plan.write_text("name: x\nruns:\n- {notebook: 01_hardware_probe.ipynb, box: cpu-only}\n")
    own.write_text("import torch\ndef f(given):\n    return given['x']\nprint(torch.zeros(9))\n")
    (tmp_path / "log").write_text("epoch 1 of 2\nCUDA out of memory\n")
    rows = "".join(f"{100 + at / 4},{at + 1}\n" for at in range(400))
    (tmp_path / "trades.csv").write_text("price,volume\n" + rows)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    env = {**clean, "HOME": str(home)}
    trace = ROOT / "tests/golden/2.14.1/0000_uniform_small.jsonl.xz"
    words = [
        f"run {plan} --out {out}/run",
        *(f"{verb} BATCH" for verb in ("status", "report")),
        f"share BATCH --out {out}/page.html --issue rocm",
        f"replay {trace}",
        f"whatif {trace} --capacity 8GiB",
        f"tune {own}:f --study {out}/s.db --param x=0..1 --trials 1",
        f"vpoc {tmp_path}/trades.csv --out {out}/v",
        f"rehearse --capacity 8GiB -- {sys.executable} {own}",
        f"trial --preset cpu-one-thread --repeats 3 -- {sys.executable} {own}",
    ]
    try:
        for line in words:
            batch = next((one.parent for one in (out / "run").glob("*/plan.yaml")), out / "run")
            argv = [sys.executable, MAIN, *line.replace("BATCH", str(batch)).split()]
            how = {"env": env, "capture_output": True, "text": True, "umask": 0}
            done = subprocess.run(argv, check=False, **how)
            if not line.startswith("rehearse"):
                assert done.returncode in (0, 1), (line, done.stderr)
            assert list(home.iterdir()) == [], line
        left = [path for path in [out, *out.rglob("*")] if not path.is_symlink()]
        modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in left}
    finally:
        shutil.rmtree(out, ignore_errors=True)
    assert modes == {(True, 0o700), (False, 0o600)}


def test_what_record_trial_and_tune_write_is_the_owners_and_the_program_keeps_its_umask(tmp_path):
    (tmp_path / "own.py").write_text(
        "import os, torch\n"
        "def f(given):\n    return given['x']\n"
        "torch.cuda.allocate(512)\n"
        "open(os.path.join(os.path.dirname(__file__), f'own-{os.getpid()}'), 'w').close()\n"
    )
    out = tmp_path / "outputs"
    program = ["--", sys.executable, tmp_path / "own.py"]
    standin = ROOT / "tests" / "programs" / "history_torch"
    env = {**os.environ, "CASEBOOK_OUTPUTS": str(out), "PYTHONPATH": str(standin)}
    for words in (
        ["record", "--hang-after", "60", *program],
        ["trial", "--preset", "cpu-one-thread", "--repeats", "3", *program],
        ["tune", f"{tmp_path}/own.py:f", "--study", out / "s.db", "--param", "x=0..1"]
        + ["--trials", "1"],
    ):
        command = [sys.executable, MAIN, *words]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, umask=0, check=False
        )
        assert done.returncode in (0, 1), done.stderr
    modes = {path.name: path.stat().st_mode & 0o777 for path in out.rglob("*")}
    assert {"s.db", "record.json", "trials"} < set(modes) and len(modes) > 6
    assert set(modes.values()) == {0o700, 0o600}
    own = [path.stat().st_mode & 0o777 for path in tmp_path.glob("own-*")]
    assert len(own) >= 4 and set(own) == {0o666}

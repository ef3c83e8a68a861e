"""A program that knows nothing of the recorder: it runs as ever, and what it asked of the allocator is kept."""

import json
import os
import pickle
import re
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import verb

from helpers.allocator import record as module
from helpers.allocator.record import RecordError, record, under
from helpers.allocator.recorded_processes import redacted
from helpers.allocator.under_torch import recorder
from helpers.ground.child import carrying

STANDIN = Path(__file__).parent / "programs" / "history_torch"
USES_GPU = "import torch\ntorch.cuda.allocate(512)\n"
OWN = "the program's own handler, which ran as ever"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Record a program text under the stand-in torch; options of the interpreter come first."""
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    (tmp_path / "plain").mkdir()

    def start(text, *arguments, options=(), **asked):
        program = tmp_path / "plain" / "program.py"
        program.write_text(textwrap.dedent(text))
        return record(
            [sys.executable, *options, str(program), *arguments], tmp_path / "trace.pickle", **asked
        )

    return start


def events(path):
    return [one["action"] for one in pickle.loads(Path(path).read_bytes())["device_traces"][0]]


def kept(recording):
    return sorted(one["reason"] for row in recording.processes for one in row["snapshots"])


# Unchanged.


def test_exit_code_output_arguments_and_path_are_the_programs_own(run, capfd, tmp_path):
    text = """
        import sys, torch
        print(sys.argv[1:], [entry for entry in sys.path if "under_torch" in entry], sys.modules["torch"].__spec__.loader)
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """
    recording = run(text, "--lr", "1")
    out, err = capfd.readouterr()
    assert recording.exit_code == 7 and recording.signal == ""
    assert out.startswith("['--lr', '1'] [] <") and err == "to stderr\n"


@pytest.mark.parametrize("form", ["script", "module", "text", "console script", "shell"])
def test_every_form_of_a_python_program_is_recorded(form, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{STANDIN}{os.pathsep}{tmp_path}")
    program = tmp_path / "program.py"
    program.write_text(f"#!{sys.executable}\n{USES_GPU}")
    program.chmod(0o755)
    command = {
        "script": [sys.executable, str(program)],
        "module": [sys.executable, "-m", "program"],
        "text": [sys.executable, "-c", USES_GPU],
        "console script": [str(program)],
        "shell": ["sh", "-c", f"{sys.executable} {program}; exit 3"],
    }[form]
    recording = record(command, tmp_path / "out.pickle")
    assert recording.exit_code == (3 if form == "shell" else 0)
    assert events(recording.trace) == ["alloc"]


def test_the_programs_own_sitecustomize_still_runs(run, tmp_path, monkeypatch, capfd):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('mine', __name__)\nMARK = 5\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'own'}{os.pathsep}{STANDIN}")
    recording = run("import sitecustomize\nprint(sitecustomize.MARK)\n" + USES_GPU)
    assert capfd.readouterr().out == "mine sitecustomize\n5\n" and recording.trace is not None


ASKS = (
    "import importlib.util, sys\nassert importlib.util.find_spec('torch')\nassert 'torch' not in sys.modules\n"
    "assert not [name for name in sys.modules if 'casebook' in name]\n"
)
CPU_BUILD = "because this torch is a CPU build"
NOT_LOADED = "python -I, -E and -S .*helpers.allocator.recording"
CUDA_ASYNC = "not available because RuntimeError: cudaMallocAsync does not yet support"


@pytest.mark.parametrize(
    ("text", "environ", "options", "why"),
    [
        (ASKS, {}, [], "^the command never imported torch$"),
        ("print('ran')", {}, ["-I"], NOT_LOADED),
        ("print('ran')", {}, ["-S"], NOT_LOADED),
        ("print('ran')", {}, ["-E"], NOT_LOADED),
        ("import torch", {}, [], "the program never used the GPU"),
        ("import torch", {"CPU_TORCH": "1"}, [], CPU_BUILD),
        (USES_GPU, {"SICK_HISTORY": "1"}, [], CUDA_ASYNC),
    ],
)
def test_what_keeps_no_trace_runs_as_ever_and_says_why(
    run, monkeypatch, text, environ, options, why
):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    recording = run(text, options=options)
    assert (recording.exit_code, recording.trace) == (0, None)
    assert re.search(why, recording.why_no_trace)
    assert bool(recording.processes) == ("torch" in text and text != ASKS)


def test_an_import_of_torch_that_fails_fails_as_ever_and_is_told(run, monkeypatch, capfd):
    monkeypatch.setenv("BROKEN_TORCH", "1")
    recording = run("import torch")
    assert recording.exit_code == 1 and "libamdhip64.so.6" in capfd.readouterr().err
    assert "import torch failed: OSError: libamdhip64.so.6" in recording.why_no_trace


# What is kept.


def test_the_history_starts_with_the_programs_own_first_use_and_is_kept_at_the_end(run):
    recording = run(
        "import torch\nassert not torch.cuda._initialized and torch.cuda.memory.history is None\n"
        "torch.cuda.init()\nassert torch.cuda.memory.history == 'all'\n" + USES_GPU
    )
    assert recording.exit_code == 0 and kept(recording) == ["exit"]
    assert events(recording.trace) == ["alloc"]
    row = json.loads((recording.folder / "record.json").read_text())["processes"][0]
    assert row["torch"]["version"] == "2.7.0+standin" and row["ended"] == "exit"
    stats = {"allocation.all.allocated": 1, "allocated_bytes.all.peak": 512, "num_ooms": 0}
    card = {"index": 0, "name": "Stand-in", "total_bytes": 1 << 20, "fraction": None}
    assert row["devices"] == [{**card, "stats": stats}]


def test_an_out_of_memory_that_the_program_catches_is_the_trace_and_the_first_alone_counts(run):
    text = f"""{USES_GPU}for size in (2 << 20, 3 << 20):
    try:
        torch.cuda.allocate(size)
    except torch.cuda.OutOfMemoryError:
        pass
torch.cuda.allocate(512)
"""
    recording = run(text)
    assert recording.exit_code == 0 and kept(recording) == ["exit", "oom"]
    assert events(recording.trace) == ["alloc", "oom"] and recording.processes[0]["ooms"] == 2
    assert recording.processes[0]["snapshots"][0]["size_bytes"] == 2 << 20


def test_a_snapshot_does_not_import_torchs_compiler_which_the_program_still_can(run):
    text = """
        import sys, torch
        try:
            torch.cuda.allocate(2 << 20)
        except torch.cuda.OutOfMemoryError:
            assert "torch._inductor" not in sys.modules
        assert torch._inductor is sys.modules["torch._inductor"]
        """
    recording = run(text)
    assert recording.exit_code == 0 and kept(recording) == ["exit", "oom"]


def test_a_full_ring_buffer_is_said(run):
    recording = run(USES_GPU * 8, max_events=5)
    assert len(events(recording.trace)) == 5 and any(
        "ring buffer of 5 events was full" in note for note in recording.notes
    )


# Ends.

KILLS_ITSELF = "import os, threading\nthreading.Timer(0.1, os.kill, (os.getpid(), 15)).start()\n"
WAITS = KILLS_ITSELF + "import time\ntime.sleep(30)"
LISTENS = KILLS_ITSELF + "threading.Event().wait(30)"


@pytest.mark.parametrize(
    ("end", "code", "signal_name", "reasons"),
    [
        ("raise ValueError('mine')", 1, "", ["exit"]),
        ("import os\nos._exit(9)", 9, "", ["os._exit"]),
        ("import os\nos.execvp('true', ['true'])", 0, "", ["exec"]),
        (WAITS, 143, "SIGTERM", ["SIGTERM"]),
        (LISTENS, 143, "SIGTERM", ["SIGTERM"]),
        ("import os\nos.kill(os.getpid(), 9)", 137, "SIGKILL", []),
    ],
)
def test_it_ends_as_ever_and_what_there_was_is_kept(run, capfd, end, code, signal_name, reasons):
    recording = run(USES_GPU + end)
    assert (recording.exit_code, recording.signal) == (code, signal_name)
    assert kept(recording) == reasons and bool(recording.trace) == bool(reasons)
    assert reasons == [] or events(recording.trace) == ["alloc"]
    assert ("ValueError: mine" in capfd.readouterr().err) == (code == 1)
    assert reasons or "killed or crashed" in recording.notes[0]


DEAF = """import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(int(sys.argv[1]), signal.SIGTERM)
time.sleep(600)
"""


def test_a_recording_that_sigterm_ends_takes_along_what_does_not_hear_it(tmp_path):
    """The shell ends at once, and its child would live on without it."""
    (tmp_path / "deaf.py").write_text(DEAF)
    words = f"{sys.executable} {tmp_path}/deaf.py {os.getpid()}; true"
    recording = record(["sh", "-c", words], tmp_path / "out", term_s=1.0)
    assert (recording.exit_code, recording.signal) == (143, "SIGTERM")
    asked = json.dumps({"folder": str(recording.folder), **recording.settings})
    assert carrying(f"CASEBOOK_RECORD={asked}") == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_handlers_of_the_program_are_its_own_and_a_snapshot_is_kept_beside_them(run, when, capfd):
    own = "import os, signal, sys, time\nfor n in (10, 15): signal.signal(n, lambda n, f: print('mine', n, flush=True))\n"
    acts = "for n in (10, 15):\n    os.kill(os.getpid(), n)\n    time.sleep(0.4)\nsys.exit(4)\n"
    recording = run((own + USES_GPU if when == "before" else USES_GPU + own) + acts)
    assert recording.exit_code == 4 and capfd.readouterr().out == "mine 10\nmine 15\n"
    assert kept(recording) == ["SIGTERM", "SIGUSR1", "exit"]
    assert recording.processes[0]["signals"] == {"SIGUSR1": OWN, "SIGTERM": OWN}


def test_sigusr1_to_the_recording_reaches_the_program(run, tmp_path):
    ready = tmp_path / "ready"
    done = tmp_path / "done"
    text = f"""{USES_GPU}import pathlib, time
pathlib.Path({str(ready)!r}).touch()
until = time.time() + 20
while not pathlib.Path({str(done)!r}).exists() and time.time() < until:
    time.sleep(0.02)
"""

    def person():
        wait_for(ready.exists)
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_for(lambda: list((tmp_path / "trace.record").glob("*-SIGUSR1.pickle")))
        done.touch()

    threading.Thread(target=person).start()
    recording = run(text)
    assert recording.exit_code == 0 and kept(recording) == ["SIGUSR1", "exit"]
    assert "program.py" in next(recording.folder.glob("*-SIGUSR1.stacks")).read_text()


def wait_for(ready, limit_s=20):
    until = time.monotonic() + limit_s
    while not ready() and time.monotonic() < until:
        time.sleep(0.02)


# Several processes.


def test_a_forked_child_that_leaves_by_os_exit_leaves_its_parents_record_alone(run):
    text = f"""{USES_GPU}import os
for _ in range(2):
    if not os.fork():
        os._exit(0)
    os.wait()
"""
    recording = run(text)
    assert len(recording.processes) == 1 and kept(recording) == ["exit"]


def test_a_forked_child_that_is_terminated_dies_alone(run):
    text = f"""{USES_GPU}import os, signal, sys, time
child = os.fork()
if not child:
    time.sleep(30)
time.sleep(0.1)
os.kill(child, 15)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 20)
"""
    assert run(text).exit_code == 5


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_process_that_uses_the_gpu_has_its_own_files(run, method):
    text = f"""
        import multiprocessing, torch
        def work():
            import torch
            torch.cuda.allocate(512)
        if __name__ == "__main__":
            child = multiprocessing.get_context({method!r}).Process(target=work)
            child.start(); child.join()
            work(); work()
        """
    recording = run(text)
    assert recording.exit_code == 0 and len(recording.processes) == 2
    assert sorted(row["snapshots"][0]["events"] for row in recording.processes) == [1, 2]
    assert events(recording.trace) == ["alloc"] * 2


# Quiet spells.


def test_a_program_that_spins_leaves_stacks_a_snapshot_and_a_sentence(run):
    text = f"""{USES_GPU}import time
def spins():
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        pass
spins()
"""
    recording = run(text, hang_after_s=0.4)
    assert recording.exit_code == 0 and kept(recording) == ["exit", "hang"]
    (hang,) = recording.processes[0]["hangs"]
    assert hang["says"].startswith("no allocation on the GPU and no output for 0.")
    assert "in spins" in (recording.folder / hang["stacks"]).read_text()
    assert any("its stacks are in" in note for note in recording.notes)


@pytest.mark.parametrize("life", ["torch.cuda.allocate(1)", "print(1, flush=True)"])
def test_a_program_that_allocates_or_writes_is_not_hung(run, life):
    recording = run(
        USES_GPU + f"import time\nfor _ in range(10):\n    time.sleep(0.1)\n    {life}\n",
        hang_after_s=0.6,
    )
    assert recording.processes[0]["hangs"] == [] and not list(recording.folder.glob("*.stacks"))


def test_a_call_that_holds_the_interpreter_leaves_stacks_too(run):
    text = f"""{USES_GPU}import ctypes
def in_a_driver():
    ctypes.PyDLL(None).usleep(900_000)
in_a_driver()
"""
    recording = run(text, hang_after_s=0.2)
    assert recording.exit_code == 0
    assert "in_a_driver" in next(recording.folder.glob("*-stuck.stacks")).read_text()
    assert any("one call held the interpreter" in note for note in recording.notes)


# Wrong use, and what is shown.


def test_wrong_use_is_one_line_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # a folder that may not be read would be named
    (tmp_path / "there.pickle").touch()
    for command, out, asked, says in (
        ([], "a.pickle", {}, "no command"),
        (["no-such-program"], "a.pickle", {}, "No such file"),
        (["true"], "there.pickle", {}, "exists already"),
        (["true"], "a.pickle", {"max_events": 0}, "above zero"),
    ):
        with pytest.raises(RecordError, match=says):
            record(command, tmp_path / out, **asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.pickle"]


def test_a_recording_that_kept_nothing_stands_in_nobodys_way(tmp_path):
    for again in range(2):
        recording = record(["true"], tmp_path / "out.pickle")
        assert (recording.trace, recording.exit_code) == (None, 0), again
        assert "none of its Pythons loaded the recorder" in recording.why_no_trace
    (recording.folder / "1.stacks").write_text("where it hung")
    with pytest.raises(RecordError, match="exists already.*--force"):
        record(["true"], tmp_path / "out.pickle")
    (tmp_path / "notes.pickle").write_text("nobody's recording")
    for name, code in (("out", 0), ("notes", 2)):
        done = verb("record", "--out", tmp_path / f"{name}.pickle", "--force", "--", "true")
        assert done.code == code, done.err
    assert (tmp_path / "notes.pickle").read_text() == "nobody's recording"


def test_another_python_takes_the_place_of_the_one_that_is_named():
    assert under("/opt/py", ["python3", "t.py"]) == ["/opt/py", "t.py"]
    assert under("/opt/py", ["t.py", "-x"]) == ["/opt/py", "t.py", "-x"]
    with pytest.raises(RecordError, match="leave that option out"):
        under("/opt/py", ["torchrun", "t.py"])


def test_secrets_and_the_home_folder_are_not_shown(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    given = (
        "python /home/ada/t.py --api-key abc --token=xyz --lr 0.1 --out=/home/ada/o hf_abcdefgh https://ada:pw@host/x "
        "WANDB_API_KEY=1 --tokenizer gpt2"
    )
    shown = (
        "python ~/t.py --api-key *** --token=*** --lr 0.1 --out=~/o *** https://***@host/x "
        "WANDB_API_KEY=*** --tokenizer gpt2"
    )
    assert redacted(given.split()) == shown.split()


HARMLESS = (
    "--max-tokens 512;--max-new-tokens=64;--author ada;--key-frames 8;--num_keys=4;--monkey-patch on;--pad-token <pad>;"
    "--bypass yes;eos_token_id=2"
)
SECRET = "--api-key --hf-token --dbPassword --api-keys --secretkey --auth --PGPASSWORD --aws-access-key-id --refresh-tokens"


def test_an_option_that_names_a_secret_loses_its_value_and_one_that_only_looks_so_keeps_it():
    for words in HARMLESS.split(";"):
        assert redacted(words.split()) == words.split()
    for name in SECRET.split():
        assert redacted([name, "value-1"]) == [name, "***"], name
        assert redacted([f"{name}=value-1"]) == [f"{name}=***"], name


def test_nothing_but_the_recording_is_left_behind(run):
    recording = run(USES_GPU)
    assert sorted(path.suffix for path in recording.folder.iterdir()) == [".json", ".pickle"]
    assert recording.trace.name == "trace.pickle"


# Under the real allocator: CASEBOOK_ORACLE_TORCH names a folder with a CUDA wheel of torch (pip install --no-deps --target).

RUNS_OUT = """
import torch
keep = [torch.empty(300000, dtype=torch.uint8, device="cuda") for _ in range(20)]
del keep[::2]
while True:
    keep.append(torch.empty(70 << 20, dtype=torch.uint8, device="cuda"))
"""


def prove_under_oracle(torch_folder, out, text=RUNS_OUT, **asked):
    """A program recorded that runs on torch's own allocator over the oracle's device of 1 GiB."""
    from oracle import build

    environment = build.environment(torch_folder, build.preload(torch_folder, out.parent))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment, "FAKE_VRAM_BYTES": str(1 << 30)}.items():
            patch.setenv(name, value)
        return record([sys.executable, "-c", text], out, **asked)


@pytest.mark.skipif(
    "CASEBOOK_ORACLE_TORCH" not in os.environ, reason="CASEBOOK_ORACLE_TORCH names no torch folder"
)
def test_a_program_that_runs_out_of_real_memory_is_recorded_to_its_last_request(tmp_path, capfd):
    recording = prove_under_oracle(
        Path(os.environ["CASEBOOK_ORACLE_TORCH"]), tmp_path / "oom.pickle"
    )
    snapshot = pickle.loads(recording.trace.read_bytes())
    trace = snapshot["device_traces"][0]
    assert recording.exit_code == 1 and "OutOfMemoryError" in capfd.readouterr().err
    assert kept(recording) == ["exit", "oom"]
    assert (trace[-1]["action"], trace[-1]["size"]) == ("oom", 70 << 20)
    assert sum(one["action"] == "alloc" for one in trace) - sum(
        one["action"] == "free_completed" for one in trace
    ) == sum(
        block["state"] == "active_allocated"
        for segment in snapshot["segments"]
        for block in segment["blocks"]
    )
    assert recording.processes[0]["devices"][0]["total_bytes"] == 1 << 30


def test_the_recorders_folder_is_the_one_that_is_put_first(tmp_path):
    assert (module.INJECT / "sitecustomize.py").exists()
    found = module.environment({"PYTHONPATH": "/a"}, tmp_path, {})
    assert found["PYTHONPATH"] == f"{module.INJECT}{os.pathsep}/a"
    assert module.environment({}, tmp_path, {})["PYTHONPATH"] == str(module.INJECT)


def test_facts_that_the_program_adds_while_they_are_written_lose_no_record(tmp_path):
    """A watching thread writes them while the program's own thread goes on."""
    facts = {"allocator_variables": {}}

    class Late:
        def __str__(self):
            facts["cells"] = []
            return "late"

    facts["late"] = Late()
    written = SimpleNamespace(facts=facts, base=str(tmp_path / "process"), open=True)
    recorder.Recorder._write(written)
    assert json.loads((tmp_path / "process.json").read_text())["late"] == "late"

"""Is a trial lost or repeated when a tuning study is killed? A kill before each of its writes.

Optuna is imported once, each life is a fork whose objective is a stand-in, and it ends itself by a real SIGKILL just before one
write. Those of the storage are SQLite's own system calls (open of a new file, write, truncate, unlink: seen through the hook
that its unix VFS has for them); those of the supervisor are every file that it makes, renames or removes. A kill leaves the
page cache as it is: no power cut.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.ground.child import Ended, Transcript  # noqa: E402

TRIALS = 4
# A kill loses no page cache, so what is synced to a disk matters nothing here, and is slow.
MEMORY = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)
# The calls by which SQLite changes a file, as ctypes types them: the result, then the arguments.
NUMBER = ctypes.c_int
SIZE = ctypes.c_ssize_t
TEXT = ctypes.c_char_p
PLACE = ctypes.c_void_p
CALLS = {
    "open": (NUMBER, TEXT, NUMBER, NUMBER),
    "write": (SIZE, NUMBER, PLACE, SIZE),
    "pwrite": (SIZE, NUMBER, PLACE, SIZE, SIZE),
    "pwrite64": (SIZE, NUMBER, PLACE, SIZE, SIZE),
    "ftruncate": (NUMBER, NUMBER, SIZE),
    "unlink": (NUMBER, TEXT),
}


class Failpoint:
    """Counts the writes of this process below ``folder``, and kills it before the ``at``-th (0: never)."""

    def __init__(self, folder: Path, at: int):
        self.folder = str(folder)
        self.at = at
        self.names = []
        self.kept: list[Any] = []

    def hit(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        self._sqlite()
        sys.addaudithook(self._audited)

    def _audited(self, event: str, args: tuple[Any, ...]) -> None:
        flags = args[2] if event == "open" and isinstance(args[2], int) else 0
        writes = flags & (os.O_WRONLY | os.O_RDWR) or event in (
            "os.rename",
            "os.remove",
            "os.mkdir",
        )
        path = str(args[0]) if writes else ""
        if path.startswith(self.folder) and not path.endswith("done"):
            self.hit(event.replace(".", " "))

    def _sqlite(self) -> None:
        """Put a failpoint before each call by which SQLite changes a file. sqlite3.h: sqlite3_vfs, xSetSystemCall."""
        import _sqlite3

        maps = (line for line in open("/proc/self/maps") if "libsqlite3" in line)
        library = ctypes.CDLL(next(maps, _sqlite3.__file__).split()[-1])
        library.sqlite3_vfs_find.restype = PLACE
        vfs = library.sqlite3_vfs_find(None)
        # Three ints, padding, and from its fourth word on pointers: pNext, zName, pAppData, xOpen, ...
        words = ctypes.cast(vfs, ctypes.POINTER(PLACE))
        get = ctypes.CFUNCTYPE(PLACE, PLACE, TEXT)(words[5 + 14])
        put = ctypes.CFUNCTYPE(NUMBER, PLACE, TEXT, PLACE)(words[5 + 13])
        for name, kind in CALLS.items():
            found = get(vfs, name.encode())
            if not found:
                continue  # this build of SQLite uses the other of two
            prototype = ctypes.CFUNCTYPE(*kind, use_errno=True)
            before = prototype(found)

            def call(*args: Any, name: str = name, original: Any = before) -> int:
                if name != "open" or (args[1] & os.O_CREAT and not os.path.exists(args[0])):
                    self.hit(f"storage {name}")
                return original(*args)

            self.kept.append(prototype(call))
            if put(vfs, name.encode(), ctypes.cast(self.kept[-1], PLACE)):
                raise RuntimeError(f"SQLite takes no {name} of ours")


def inline(argv: list[str], start_s: float, then_s: Any, *, env: Any, umask: int) -> Transcript:
    """A trial that is evaluated in the supervisor's own process: what the supervisor does is the same."""
    done, x = argv
    with open(done, "a") as file:
        file.write(x + "\n")
    row = {"event": "result", "value": (float(x) - 0.3) ** 2, "context": "none"}
    return Transcript(Ended("exited", 0, "", 0.0, "", "", ()), (row,))


def tuned(folder: Path, command_of: Callable[[Any], list[str]], trials: int) -> list[Any]:
    """One supervisor's life to its end: the study's final table."""
    import optuna

    from helpers.trials import tuning

    tuning.sampler = optuna.samplers.RandomSampler
    settings = tuning.StudySettings(parallel=2, seed=3, limit_s=60)
    space = {"x": optuna.distributions.FloatDistribution(0, 1)}
    done = tuning.tune(folder / "s.db", command_of, space, trials, settings)
    names = ("number", "value", "outcome")
    rows = [[row["params"]["x"], *(row[name] for name in names)] for row in done.results]
    return [done.best, rows]


def in_this_process(folder: Path) -> list[Any]:
    """A study whose trials are evaluated by ``inline``."""
    return tuned(folder, lambda params: [str(folder / "done"), repr(params["x"])], TRIALS)


def forked(folder: Path, at: int) -> dict[str, Any] | None:
    """A life in a fork, killed before its ``at``-th write: what it told at its end, None where it was killed."""

    def life(out: int) -> None:
        failpoint = Failpoint(folder, at)
        failpoint.install()
        table = in_this_process(folder)
        os.write(out, json.dumps({"table": table, "names": failpoint.names}).encode())

    told, killed = in_a_fork(life)
    return None if killed else json.loads(told)


def in_a_fork(life: Callable[[int], None]) -> tuple[str, bool]:
    """What ``life`` wrote to its pipe in a fork, and whether it was killed. RuntimeError for any other end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            life(writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as lines:
        told = lines.read()
    status = os.waitpid(pid, 0)[1]
    if status not in (0, signal.SIGKILL):
        raise RuntimeError(f"a life ended with status {status}, expected 0 or SIGKILL")
    return told, status != 0


COMPLETE = "SELECT t.number, v.value FROM trials t JOIN trial_values v USING (trial_id) WHERE t.state = 'COMPLETE'"
ANSWERED = (
    "SELECT p.param_value FROM trial_user_attributes a JOIN trial_params p USING (trial_id) "
    "WHERE a.key = 'outcome'"
)


class Kept:
    """What is finished at each kill, and whether a later life lost or repeated it. Of a copy: SQLite heals what it reads."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.complete = {}
        self.recorded = {}
        self.lost = 0

    def look(self) -> None:
        now = self._complete()
        self.lost += sum(now.get(number) != value for number, value in self.complete.items())
        self.complete = now
        evaluated = self.evaluated()
        for (value,) in self._asked(ANSWERED):
            self.recorded.setdefault(repr(value), evaluated[repr(value)])

    def evaluated(self) -> Counter[str]:
        done = self.folder / "done"
        return Counter(done.read_text().splitlines() if done.exists() else [])

    def add_to(self, found: Counter[str], same: bool, trials: int) -> None:
        """Count a study that is finished: whether its table is the ``same``, what was lost, repeated and done again."""
        now = self.evaluated()
        found["identical"] += same
        found["lost"] += self.lost
        found["repeated"] += sum(now[x] - count for x, count in self.recorded.items())
        found["redone_trials"] += sum(now.values()) - trials

    def _complete(self) -> dict[int, float]:
        return dict(self._asked(COMPLETE))

    def _asked(self, query: str) -> list[Any]:
        if not (self.folder / "s.db").exists():
            return []
        with tempfile.TemporaryDirectory(dir=MEMORY) as copy:
            for path in self.folder.glob("s.db*"):
                if path.is_file():
                    shutil.copy(path, copy)
            with closing(sqlite3.connect(Path(copy) / "s.db")) as database:
                return database.execute(query).fetchall()


def failpoint_kills(kills: int | None = None, seed: int = 2) -> dict[str, Any]:
    """A study killed before one write and finished, for each write there is (or ``kills`` of them, spread); one in five is
    killed again before a random write of its recovery. Failpoints in forks of this process, whose worker is the stand-in."""
    from helpers.trials import tuning

    rng = random.Random(seed)
    began = time.monotonic()
    found = Counter(dict.fromkeys((*COUNTED, "runs", "killed_again_in_recovery"), 0))
    with mock.patch.object(tuning, "transcript", inline):
        with tempfile.TemporaryDirectory(dir=MEMORY) as text:
            # All that is imported on the way is so once, before the first fork.
            in_this_process(Path(text))
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            undisturbed = forked(Path(folder), 0)
        assert undisturbed is not None
        names = undisturbed["names"]
        count = kills or len(names)
        chosen = [1 + at * len(names) // count for at in range(count)]
        for run, at in enumerate(chosen):
            with tempfile.TemporaryDirectory(dir=MEMORY) as text:
                kept = Kept(Path(text))
                ended = None
                again = [rng.randrange(1, len(names))] if run % 5 == 4 else []
                for kill in [at, *again, 0]:
                    ended = forked(Path(text), kill)
                    kept.look()
                    if ended is not None:
                        break
                    found["kills"] += 1
                    found["killed_again_in_recovery"] += kill != at
                assert ended is not None
                found["runs"] += 1
                kept.add_to(found, ended["table"] == undisturbed["table"], TRIALS)
    of = {"boundaries": len(names), "boundaries_killed_at": len(set(chosen))}
    seconds = round(time.monotonic() - began, 1)
    return {**found, **of, "of": dict(sorted(Counter(names).items())), "seconds": seconds}


COUNTED = ("kills", "identical", "lost", "repeated", "redone_trials")

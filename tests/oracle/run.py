"""Runs jobs on the real allocator of one torch: installs it where it is not, and starts the workers."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.oracle import build, jobs

WORKER = Path(__file__).resolve().parent / "worker.py"


@dataclass(frozen=True)
class Oracle:
    """A torch that can be run: its version, the Python that runs it, the environment that does, and the build.

    ``loader``: the words before that Python where the build needs another C library than this machine's.
    """

    torch: str
    python: str
    env: dict[str, str]
    build: str = "cuda"
    loader: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.torch if self.build == "cuda" else f"{self.torch}+{self.build}"

    def start(self, argv: list[str]) -> subprocess.Popen:
        return subprocess.Popen(
            [*self.loader, self.python, *argv],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def results(
        self,
        made: list[tuple[jobs.Job, list[dict]]],
        folder: Path,
        workers: int = os.cpu_count() or 1,
    ) -> list[Path]:
        """One result file a job. Raises NotRun with a worker's last words where a job did not end well."""
        traces = jobs.write(folder / "traces", made)
        out = folder / "results"
        out.mkdir(exist_ok=True)
        shares = [traces[at::workers] for at in range(min(workers, len(traces)))]
        started = [self.start([str(WORKER), str(out), *map(str, share)]) for share in shares]
        said = [(process.communicate()[1], process.returncode) for process in started]
        for words, code in said:
            if code:
                last = (words.strip() or f"a worker ended with {code}").splitlines()[-1]
                raise build.NotRun(f"a job failed on torch {self.name}: {last}")
        return [out / trace.name for trace in traces]


def prepare(torch: str, folder: Path, python: str) -> Oracle:
    """Installs and builds under ``folder``. Raises NotRun."""
    build.tools()
    target = folder / f"torch-{torch}"
    build.install(torch, target, python)
    return Oracle(torch, python, build.environment(target, build.preload(target, folder)))

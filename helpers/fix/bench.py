"""What a search runs its programs with: rehearsals under the program's torch, and a Prover."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.allocator.record import DEFAULT_EVENTS
from helpers.fix.answer import DOWNLOADS_OFF
from helpers.fix.proof import Prover
from helpers.look.cards import GpuCard
from helpers.rehearse import build, torches
from helpers.rehearse.box_settings import BoxSettings
from helpers.rehearse.forks import Forks
from helpers.rehearse.rehearsal import Rehearsal, RehearsalLimits
from helpers.rehearse.run import rehearse


@dataclass(frozen=True)
class TorchChoice:
    """Which torch: its ``release`` and the ``python`` that has it; ``cache``: the folder of what
    rehearsals need. Empty: as rehearse chooses.
    """

    release: str = ""
    python: str = ""
    cache: str = ""


def rehearsals(
    command: Sequence[str], choice: TorchChoice, settings: BoxSettings, forks: Forks
) -> tuple[Callable[..., Rehearsal], Prover]:
    """The function that rehearses a program for ``fix``, and the Prover that runs it on the CPU.

    The function is rehearse.run.rehearse under the program's torch, with the ``settings`` of a box
    and without downloads; runs after the first are forks where they can be. Raises NotReady.
    """
    cache = torches.cache_folder(choice.cache)
    python = torches.interpreter(command, choice.python)
    torch = build.ready_torch(python, choice.release, cache)

    def run(
        command: Sequence[str],
        card: GpuCard,
        out: Path,
        *,
        extra: Mapping[str, str],
        limits: RehearsalLimits,
        log: Path,
        working_folder: Path,
        conf: str | None = None,
        ends_after_s: float = 0.0,
        max_events: int = DEFAULT_EVENTS,
    ) -> Rehearsal:
        """A rehearsal; ``conf``: the allocator's settings in place of those of the box."""
        if conf is None:
            conf = settings.conf
        return rehearse(
            command,
            card,
            out,
            torch=torch,
            cache=cache,
            conf=conf,
            extra={**settings.extra, **DOWNLOADS_OFF, **extra},
            python=choice.python,
            log=log,
            limits=limits,
            working_folder=working_folder,
            ends_after_s=ends_after_s,
            max_events=max_events,
            forks=forks,
        )

    return run, Prover(Path.cwd(), python, torch, build.build(torch, cache), forks)

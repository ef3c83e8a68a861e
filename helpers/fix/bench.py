"""What runs the programs of a search: rehearsals under the program's torch, and the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.fix.answer import DOWNLOADS_OFF
from helpers.fix.proof import Prover
from helpers.ground.places import PROGRAM
from helpers.rehearse import build, torches
from helpers.rehearse.box_settings import BoxSettings
from helpers.rehearse.forks import Forks
from helpers.rehearse.rehearsal import Rehearsal
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
    """rehearse.run.rehearse under the program's torch and with the settings of a box, later runs as
    forks, and where the program runs on the CPU. Raises NotReady.
    """
    build.tools()
    place = torches.cache_folder(choice.cache)
    python = torches.interpreter(command, choice.python)
    torch, _ = torches.find_torch(python, choice.release, place)
    if torch is None:
        how = f"run: {PROGRAM} rehearse --setup ({torches.SIZE_WORDS})"
        raise torches.NotReady(
            f"{python} has no CUDA build of torch, which a rehearsal needs; {how}"
        )

    def run(
        *words: Any,
        conf: str | None = None,
        extra: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Rehearsal:
        return rehearse(
            *words,
            torch=torch,
            cache=place,
            python=choice.python,
            conf=settings.conf if conf is None else conf,
            extra={**settings.extra, **DOWNLOADS_OFF, **(extra or {})},
            forks=forks,
            **options,
        )

    return run, Prover(Path.cwd(), python, torch, build.build(torch, place), forks)

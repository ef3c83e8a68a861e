"""Rehearsals of one command line, under the card and the settings that its options name."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.signs import says_it_runs

if TYPE_CHECKING:
    from helpers.look.cards import GpuCard
    from helpers.rehearse.rehearsal import Rehearsal
    from helpers.rehearse.torches import Torch


class RehearsalBench:
    """Rehearsals of one command line: on its card, under its torch, with its settings."""

    def __init__(
        self, arguments: argparse.Namespace, card: GpuCard, torch: Torch, cache: Path
    ) -> None:
        from helpers.ground.units import parse_size
        from helpers.rehearse.box_settings import settings_of
        from helpers.rehearse.rehearsal import RehearsalLimits
        from helpers.rehearse.run import rehearse

        self.card = card
        self.settings = settings_of(arguments.box, arguments.conf)
        self.limits = RehearsalLimits(
            steps=arguments.steps,
            seconds=arguments.seconds or 0.0,
            values="most" if arguments.values == "between" else arguments.values,
            gpus=arguments.gpus,
            cudnn_bytes=parse_size(arguments.cudnn_workspace or "0"),
        )
        self._quiet = arguments.json
        self._rehearse = partial(
            rehearse,
            torch=torch,
            cache=cache,
            python=arguments.torch_python,
            conf=self.settings.conf,
            extra=self.settings.extra,
            limits=self.limits,
        )

    def run(
        self, command: list[str], card: GpuCard, out: Path, **options: Any
    ) -> Rehearsal:
        """Rehearse a command, and say that it runs where that takes long.

        Where chance decides whether buckets are held, it runs once more, with them.
        """
        from helpers.allocator.circumstances import add_to_record
        from helpers.rehearse.buckets import between_buckets
        from helpers.rehearse.counterfactual import TIMES_THE_CARD

        record_folder = out.absolute().with_suffix(".record")
        with says_it_runs(record_folder, quiet=self._quiet):
            first = self._rehearse(command, card, out, **options)
        if not first.has_buckets or not first.fits:
            return first
        options["log"] = record_folder / "held-buckets.log"
        options["limits"] = replace(first.limits, holds_buckets=True)
        trace = record_folder / "held-buckets.pickle"
        ample = replace(card, total_bytes=TIMES_THE_CARD * card.total_bytes)
        with says_it_runs(trace.with_suffix(".record"), quiet=self._quiet):
            held = self._rehearse(command, ample, trace, **options)
        both = between_buckets(first, held)
        add_to_record(out, trust=both.trust)
        return both

"""Verbs and options that are gone, each with what to use instead."""

from __future__ import annotations

from typing import Sequence  # noqa: UP035 -- subscribed when imported, and diagnose runs on Python 3.8

VERBS = {
    "history": "one DuckDB line reads all records; it stands in notebooks/README.md",
    "collect": "give report several folders: report FOLDER FOLDER",
    "fleet": "start a Dask cluster with Dask's own commands, then: run PLAN --scheduler ADDRESS",
    "criteria": "the case studies' criteria are tables in notebooks/cases",
}

OPTIONS = {
    (
        "run",
        "--print-service",
    ): "copy env/casebook-resume.service and fill in its two paths",
    ("run", "--keys"): "Dask's own TLS configuration names the keys; see env/FLEET.md",
    (
        "record",
        "--cpu-profile",
    ): "rehearse runs the program on a card that is not there",
    (
        "rehearse",
        "--against",
    ): "trial --gpu CARD --preset PRESET -- COMMAND tries presets",
    ("fits", "--train"): "rehearse -- python train.py answers exactly",
    ("fits", "--checkpointing"): "rehearse -- python train.py answers exactly",
    ("fits", "--batch"): "rehearse -- python train.py answers exactly",
    (
        "vpoc",
        "--window",
    ): "leave the other hours out of the file, or give it a session column",
    (
        "vpoc",
        "--cut",
    ): "give the file a session column; times are cut at 17:00 in Chicago",
    (
        "share",
        "--as-is",
    ): "report writes the page with everything on it, for who may see that",
    (
        "share",
        "--allow-binary",
    ): "nothing is looked through any more: only typed results go out",
    (
        "share",
        "--allow-found",
    ): "nothing is looked through any more: only typed results go out",
    (
        "capture",
        "--with-args",
    ): "a bundle keeps no arguments of processes; ps -ww -o args PID shows them",
    ("tune", "--recycle"): "each trial has a process of its own",
    ("check", "--pairs"): "rccl-tests or nccl-tests measure a pair of cards",
}


def instead(argv: Sequence[str]) -> str:
    """What to use in place of the verb or an option of a command line, as one line of an error.

    Returns an empty text where nothing of ``argv`` is gone.
    """
    if not argv:
        return ""
    verb = argv[0]
    if verb in VERBS:
        return f"{verb} is gone; {VERBS[verb]}"
    options = argv[: argv.index("--")] if "--" in argv else argv
    for word in options:
        option = word.partition("=")[0]
        if (verb, option) in OPTIONS:
            return f"{verb} {option} is gone; {OPTIONS[verb, option]}"
    return ""

"""Two results held against each other event by event: the real allocator's lines and the model's."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from pathlib import Path

from helpers.allocator.driver import Card
from helpers.allocator.oracle_lines import from_oracle
from helpers.allocator.oracle_results import lines
from helpers.allocator.outcome import ReplayError
from helpers.allocator.replay import replay
from helpers.settings.allocator_text import SettingsError

FIELDS = ("out", "seg", "off", "bsize", "alloc", "res", "act", "req", "isplit", "n", "c", "drv")
ABSENT = "absent"  # a field that one line lacks; null is a counter that the release does not have
OPERATION = (
    "op",
    "id",
    "size",
    "stream",
    "pool",
    "mempool",
    "via",
    "fraction",
    "conf",
    "on",
    "bytes",
)


def read(path: Path) -> list[dict]:
    """The lines of a result file, plain or .xz."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        return [json.loads(line) for line in file if line.strip()]


def operations(result: Iterable[dict]) -> list[dict]:
    """What was asked, out of result lines. fail_next's ``n`` stands there as ``count``."""
    asked = []
    for row in (row for row in result if "op" in row):
        count = {"n": row["count"]} if row["op"] == "fail_next" else {}
        asked.append({**{key: row[key] for key in OPERATION if key in row}, **count})
    return asked


def model(
    job: dict, ops: list[dict], torch: str, engine: str = "auto", build: str = "cuda"
) -> list[dict]:
    """The result lines of a job {conf, vram, fraction, policy, foreign} over operations, by the model."""
    card = Card(job["vram"], job.get("foreign") or 0, job.get("policy") or "firstfit")
    how = {"torch": torch, "build": build, "fraction": job.get("fraction"), "engine": engine}
    try:
        trace = from_oracle(map(json.dumps, ops))
        outcome = replay(trace, job.get("conf") or "", card, timeline=True, **how)
    except SettingsError as error:
        return [{"job": job}, {"config_error": str(error)}]
    except ReplayError as error:
        return [{"job": job}, {"torn": str(error)}]
    return [{"job": job}, *lines(ops, outcome)]


def same(real: object, model: object) -> bool:
    """Equal, where a counter that the release does not have (null) equals anything."""
    if real is None:
        return True
    if isinstance(real, str) and isinstance(model, str) and real.startswith("error: "):
        return model.startswith("error: ")  # a refused setting: each in its own words
    if isinstance(real, list):
        return isinstance(model, list) and len(real) == len(model) and all(map(same, real, model))
    return real == model


def _blocks(layout: list[dict]) -> list[dict]:
    """The layout without the requested bytes of free blocks, which are those of their last use."""
    found = []
    for segment in layout:
        rows = [
            [offset, size, None if state == "I" else requested, state]
            for offset, size, requested, state in segment["blocks"]
        ]
        found.append({**segment, "blocks": rows})
    return found


def fields(real: dict, model: dict) -> list[str]:
    """Names of the fields in which two lines differ; of the last lines, of the statistics and the layout.

    A layout in the middle (the operation snapshot) is compared where the model shows one.
    """
    if "config_error" in real or "config_error" in model:
        return [] if "config_error" in real and "config_error" in model else ["config_error"]
    if real.get("via") == "generator":
        return []  # both of a graph come and go at once: compared is what follows
    compared = FIELDS if "op" in real else ()
    wrong = [key for key in compared if not same(real.get(key, ABSENT), model.get(key, ABSENT))]
    ours = model.get("final", {})
    for name, value in real.get("final", {}).items():
        if name != "max_split_size" and not same(value, ours.get(name)):
            wrong.append(name)
    if "final" in real or "layout" in model:
        left = _blocks(real["layout"])
        right = _blocks(model.get("layout", []))
        wrong += ["layout"] * (left != right)
    return wrong


def first_difference(real: list[dict], model: list[dict]) -> str:
    """Empty, or the first event that differs and how, in one line. The first line of each names the job and is not compared."""
    torn = [lines[-1].get("torn", "") for lines in (real, model)]
    if any(torn):  # torch ends there, and the model says so: nothing else of it is compared
        return "" if all(torn) else f"torn: {torn[0] or 'no'} real, {torn[1] or 'no'} model"
    for left, right in zip(real[1:], model[1:], strict=False):
        if wrong := fields(left, right):
            named = [key for key in wrong if key in (*FIELDS, "config_error")]
            told = [f"{key} {left.get(key)} real, {right.get(key)} model" for key in named]
            return f"event {left.get('i', 'last')}: {'; '.join(told) or ', '.join(wrong)}"
    return "" if len(real) == len(model) else f"{len(real)} lines real, {len(model)} model"

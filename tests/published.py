"""Published runs of real GPUs, rehearsed: what a rehearsal says beside what four estimators said, and what NVML measured.

    make published                      every row of tests/data/measured_runs.tsv
    make published ARGS="--rows 6"      a part, drawn by a fixed seed, with as many rows of each family as it goes

The job of a row (tests/programs/rehearse/measured_job.py) runs under `casebook rehearse` on a card of that row's size, with the
releases that the authors had. They are installed into the cache folder at the first use. Compared are the peaks of runs that
ended: reserved by torch's allocator here, NVML's largest minus its first reading there. The context is in neither. No constant
is fitted. How much of a card its context takes is not published: what no run that ran out of memory there ever reached is held
by others here. Where torch's allocator had to give cached memory back to go on, its peak is that room rather than a need: those
runs stand apart. The measured batches of a language model are of lines drawn by chance, without a seed, cut to 128 tokens and
padded to the longest; here each is 128 long. So transformers are shown by the size of a batch, too. A verdict is whether a run
runs out of memory; it is *between* where what cuDNN may take decides.
Finished rows are kept in outputs/published.jsonl and not run again; to begin anew, delete it.
Ends 1 where a rehearsal failed for another reason than memory.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from helpers.rehearse.torches import cache_folder  # noqa: E402 -- the checkout stands first on sys.path

ROWS = ROOT / "tests" / "data" / "measured_runs.tsv"
JOB = ROOT / "tests" / "programs" / "rehearse" / "measured_job.py"
RESULTS = ROOT / "outputs" / "published.jsonl"
TORCH = "2.6.0"
PACKAGES = ["transformers==4.51.3", "pillow"], ["--no-deps", "torchvision==0.21.0"]
"""torchvision without what it needs: torch lies in a folder of its own, as for every rehearsal."""
SEED = 20261129
APART = "MnasNet", "MobileNetV2"
"""Nets for which every tool is far too low at small batches."""
AT_THE_LIMIT = "at the card's limit"
LINES_THAT_FILL = 16
"""Batches of so many lines are all 128 tokens long in 95 % of the runs: of WikiText-2's lines 24 % have so many or more
(GPT-2's tokenizer, validation and test set), and a run has four batches.
"""
FAMILIES = {"cnn": "other convolutional nets", "transformer": "transformers", "llm": "LLMs"}
TOOLS = {"xMem": "xmem", "DNNMem": "dnnmem", "SchedTune": "schedtune", "LLMem": "llmem"}
TABLE = "{:<26}{:<11}{:>5}{:>9}{:>9}{:>9}{:>9}   {}"
HEAD = "family", "tool", "runs", "median", "95 %", "worst", "seconds", "verdicts right"

Row = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What a tool says of a run: its peak (None: it gives none), whether it runs out (None: between).

    ``retries``: how often torch's allocator gave cached memory back to go on, where it was rehearsed;
    ``between``: the least and the most that its peak may be, where that is no one figure.
    """

    peak_bytes: int | None
    oom: bool | None
    seconds: float | None
    retries: int = 0
    between: Sequence[int] = ()


class Failed(Exception):
    """Why a rehearsal gave no answer, in one line."""


def read_rows() -> list[Row]:
    lines = ROWS.read_text(encoding="utf-8").splitlines()
    return [*csv.DictReader([line for line in lines if line[0] != "#"], delimiter="\t")]


def draw(rows: Sequence[Row], count: int) -> list[Row]:
    """That many rows, of the families in turn; the same at each call."""
    mixed = random.Random(SEED).sample(rows, len(rows))
    families = [[row for row in mixed if row["family"] == family] for family in FAMILIES]
    in_turn = [row for row in chain(*zip_longest(*families)) if row]
    return in_turn[:count]


def prepare_python() -> str:
    """The Python with the authors' releases, installed at the first use."""
    folder = cache_folder().parent / "published"
    python = folder / "bin" / "python"
    is_complete = folder / "complete"
    if not is_complete.exists():
        print(f"installing {PACKAGES} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        for packages in PACKAGES:
            pip = "-m pip install -q --disable-pip-version-check".split()
            if subprocess.run([python, *pip, *packages], check=False).returncode:
                sys.exit(f"pip did not install {packages}: expected a package index that has them")
        is_complete.touch()
    return str(python)


def held_bytes(rows: Sequence[Row], gpu: str) -> int:
    """What a card never gave to a run, though the run then ran out; 0 where none did."""
    on_card = [row for row in rows if row["gpu"] == gpu]
    ran_out = [int(row["ground_bytes"]) for row in on_card if row["real_oom"] == "true"]
    return int(on_card[0]["total_bytes"]) - max(ran_out) if ran_out else 0


def rehearse_row(row: Row, held: int, python: str) -> Answer:
    """Raises Failed."""
    zero_grad = row["zero_grad"] or "0"
    job = ["--model", row["model"], "--optimizer", row["optimizer"], "--batch", row["batch"]]
    card = ["--gpu", row["gpu"], "--capacity", row["total_bytes"], "--held", str(held)]
    with tempfile.TemporaryDirectory(prefix="published-") as folder:
        options = ["--json", "--setup", "--no-counterfactual", "--torch", TORCH, *card]
        options += ["--torch-python", python, "--out", f"{folder}/run.pickle"]
        argv = [sys.executable, "-m", "helpers", "rehearse", *options, "--", "python", str(JOB)]
        argv += [*job, "--zero-grad", zero_grad]
        ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer_of(ended.stdout or ended.stderr)


def answer_of(text: str) -> Answer:
    """The answer in what ``casebook rehearse --json`` wrote, behind the program's own words. Raises Failed."""
    _, _, shape = f"\n{text}".rpartition("\n{\n")
    try:
        run = json.loads("{" + shape)
    except json.JSONDecodeError:
        raise Failed(text.strip().rpartition("\n")[2] or "it wrote nothing") from None
    if run["exit_code"] and not run["ooms"]:
        raise Failed(run["error"])
    peak_bytes = run["peak_reserved_bytes"]
    usable_bytes = run["device"]["total_bytes"] - run["device"]["held_bytes"]
    is_between = run["fits"] and peak_bytes + run["more_bytes"] > usable_bytes
    oom = None if is_between else not run["fits"]
    between = run["reserved_between_bytes"] or ()
    return Answer(peak_bytes, oom, run["seconds"], run["retries"], tuple(between))


def published(row: Row, tool: str) -> Answer | None:
    """What another tool said of a run, as its authors published it; None: nothing."""
    peak, oom, seconds = (row[f"{tool}_{name}"] for name in ("bytes", "oom", "seconds"))
    if not oom:
        return None
    return Answer(int(peak) if peak else None, oom == "true", float(seconds) if seconds else None)


def finished() -> dict[str, Answer]:
    """The answers of earlier calls, by the path of the run."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {path: Answer(**answer) for path, answer in map(json.loads, lines)}


def group_of(row: Row, rehearsed: Answer) -> str:
    """The rows of the table that a run counts in."""
    if rehearsed.retries and row["real_oom"] == "false":
        return AT_THE_LIMIT
    return row["model"] if row["model"] in APART else FAMILIES[row["family"]]


def batch_of(row: Row) -> str:
    """Whether a batch of a language model is about always as long as its lines may be."""
    is_small = int(row["batch"]) < LINES_THAT_FILL
    return f"  {'below' if is_small else 'from'} {LINES_THAT_FILL} lines a batch"


def error_of(row: Row, answer: Answer) -> float | None:
    """How far off a peak is; None where the measured run ran out, so that its peak is not known."""
    if answer.peak_bytes is None or row["real_oom"] == "true":
        return None
    return abs(answer.peak_bytes / int(row["ground_bytes"]) - 1)


def table_line(group: str, tool: str, pairs: Sequence[tuple[Row, Answer]]) -> str:
    errors = [error for row, answer in pairs if (error := error_of(row, answer)) is not None]
    high = quantiles(errors, n=20, method="inclusive")[-1] if len(errors) > 1 else sum(errors)
    figures = [median(errors), high, max(errors)] if errors else []
    cells = [f"{figure:.2%}" for figure in figures] or ["", "", ""]
    seconds = [answer.seconds for _, answer in pairs if answer.seconds is not None]
    cells.append(f"{median(seconds):.1f}" if seconds else "")
    decided = [(row, answer) for row, answer in pairs if answer.oom is not None]
    right = sum(answer.oom == (row["real_oom"] == "true") for row, answer in decided)
    verdicts = f"{right} of {len(decided)}"
    between = len(pairs) - len(decided)
    verdicts += f", {between} between" if between else ""
    return TABLE.format(group, tool, len(errors), *cells, verdicts)


def table(rows: Iterable[Row], answers: dict[str, Answer]) -> list[str]:
    """Each tool over the runs of each family; all tools over the same runs, as far as they have an answer."""
    lines = [TABLE.format(*HEAD)]
    done = [row for row in rows if row["path"] in answers]
    for group in (FAMILIES["transformer"], FAMILIES["llm"], FAMILIES["cnn"], *APART, AT_THE_LIMIT):
        of_group = [row for row in done if group_of(row, answers[row["path"]]) == group]
        by_tool = {"casebook": [(row, answers[row["path"]]) for row in of_group]}
        for name, tool in TOOLS.items():
            said = [(row, published(row, tool)) for row in of_group]
            by_tool[name] = [(row, answer) for row, answer in said if answer]
        lines += [table_line(group, name, pairs) for name, pairs in by_tool.items() if pairs]
        if group == FAMILIES["transformer"]:
            lines += by_batch(by_tool)
    return lines


def within(rows: Iterable[Row], answers: dict[str, Answer]) -> str:
    """How often a peak was measured between the least and the most that was said."""
    pairs = [
        (int(row["ground_bytes"]), answers.get(row["path"]))
        for row in rows
        if row["real_oom"] == "false"
    ]
    ranges = [(truth, *answer.between) for truth, answer in pairs if answer and answer.between]
    if not ranges:
        return "no peak was said as a range"
    held = sum(least <= truth <= most for truth, least, most in ranges)
    width = median((most - least) / truth for truth, least, most in ranges)
    return (
        f"{held} of {len(ranges)} peaks lie in the range that was said, {width:.0%} wide (median)"
    )


def by_batch(by_tool: dict[str, list[tuple[Row, Answer]]]) -> list[str]:
    """The same runs, those with a small batch apart."""
    lines = []
    for part in sorted({batch_of(row) for row, _ in by_tool["casebook"]}):
        for name, pairs in by_tool.items():
            of_part = [(row, answer) for row, answer in pairs if batch_of(row) == part]
            lines.append(table_line(part, name, of_part))
    return lines


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rows", type=int, metavar="N", help="a part of N rows (default: all)")
    count = parser.parse_args().rows
    if count is not None and count < 1:
        parser.error(f"--rows {count}: expected 1 or more")
    every = read_rows()
    rows = draw(every, len(every) if count is None else count)
    python = prepare_python()
    answers = finished()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    for number, row in enumerate(rows, 1):
        name = f"{number} of {len(rows)}: {row['model']}, {row['optimizer']}, batch {row['batch']}"
        try:
            held = held_bytes(every, row["gpu"])
            answer = answers.get(row["path"]) or rehearse_row(row, held, python)
        except Failed as error:
            failures += 1
            print(f"{name}, {row['gpu']}: failed: {error}", flush=True)
            continue
        if row["path"] not in answers:
            answers[row["path"]] = answer
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps([row["path"], asdict(answer)]) + "\n")
        off = error_of(row, answer)
        words = "ran out of memory on the real card" if off is None else f"off by {off:.2%}"
        print(f"{name}, {row['gpu']}: {words}", flush=True)
    print("", *table(rows, answers), within(rows, answers), sep="\n")
    print(f"published: {len(rows)} runs, {failures} failed; {RESULTS.relative_to(ROOT)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

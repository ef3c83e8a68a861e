"""What public records printed beside what ``fits`` says of their inputs: ``python tests/fits_records.py FOLDER [--odd|--even]``.

A row a record: the cache (or the tokens of a pool whose size was printed), ours, printed, and whether they agree to the last
printed digit; whether it fits; where the compute buffers lie. Below it the counts by program, and by program and architecture.
"""

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.fits.answer import answer  # noqa: E402
from helpers.fits.model import read_record  # noqa: E402
from helpers.fits.servers import family_of  # noqa: E402
from helpers.ground.units import GIB, MIB  # noqa: E402
from helpers.tell.shown import Shown  # noqa: E402
from helpers.tell.values import Column  # noqa: E402

DIGITS = {"llama.cpp": 0.005 * MIB + 1, "ollama": 0.05 * GIB + 1, "SGLang": 0.01 * GIB + 2}
"""Half of the last printed digit, in bytes; SGLang prints keys and values apart, each to 0.01 GiB."""


def compared(record, path):
    """(what, ours, printed, agrees) of a record; None where it prints nothing that its inputs give."""
    truth = record["truth"]
    given = read_record(path)
    family = family_of(given.program)
    pool = truth["kv_bytes"]
    if family == "SGLang" and truth["tokens"]:
        given.inputs["tokens"] = truth["tokens"]  # what is printed beside the size
    found = answer(given)
    size = next(one["bytes"] for one in found.rows if one["part"] == "kv")
    if family == "vLLM" and pool and truth["tokens"] and found.cache["full_token"]:
        ends = [held(path, pool + way * 0.005 * GIB) for way in (-1, 0, 1)]
        return "tokens", ends[1], truth["tokens"], ends[0] <= truth["tokens"] <= ends[2]
    if family == "TensorRT-LLM" and truth["tokens"]:
        return (
            "tokens",
            found.solved["tokens"],
            truth["tokens"],
            found.solved["tokens"] == truth["tokens"],
        )
    if size is None or pool is None:
        return None
    digit = truth.get("digit") or DIGITS.get(family, 0.005 * GIB)
    return "cache", size, pool, abs(size - pool) <= digit


def held(path, available):
    """Tokens in a pool of that size."""
    given = read_record(path)
    given.inputs["available_kv_bytes"] = max(0, available)
    return answer(given).solved["tokens"]


def main(folder, half=""):
    rows = []
    counts = Counter()
    kinds = {}
    for number, path in enumerate(sorted(Path(folder).glob("*.json")), 1):
        if half and (number % 2 == 0) is (half == "--odd"):
            continue
        record = json.loads(path.read_text())
        found = answer(read_record(path))
        truth = record["truth"]
        family = family_of(record["program"]) or record["program"]
        checks = record["verification"]
        proves = checks["status"] == "exact" and checks["kind"] == "size from dimensions"
        kind = "independent" if checks["independent"] else "exact" if proves else "other"
        result = compared(record, path)
        if result:
            counts[family, kind, "agrees" if result[3] else "differs"] += 1
        counts[family, "fits", f"{found.fits} said, {truth['fits']} true"] += 1
        compute = next(one for one in found.rows if one["part"] == "compute")
        true = truth["compute_bytes"]
        low = compute["low_bytes"]
        high = compute["high_bytes"]
        inside = true and low is not None and low <= true and (high is None or true <= high)
        if true:
            words = "not predictable" if high is None else "inside" if inside else "outside"
            counts[family, "compute", words] += 1
        heads = [tag for tag in record["architecture"] if tag not in ("MoE", "vision", "shared KV")]
        kind_of = kinds.setdefault((family, ", ".join(heads) or "not given"), Counter())
        says = "none printed or given" if result is None else "equal" if result[3] else "off"
        kind_of.update([says])
        what, ours, printed, agrees = result or ("-", None, None, None)
        tags = ", ".join(record["architecture"])
        rows.append([path.stem, tags, kind, what, ours, printed, agrees, found.fits, truth["fits"]])
    columns = ["record", "architecture", "kind", "what", "ours", "printed", "agrees"]
    print(Shown("Records", [*columns, "fits", "true"], rows))
    tally = [[*key, count] for key, count in sorted(counts.items())]
    print(Shown("Counts", ["program", "of", "result", Column("records")], tally))
    ends = ["equal", "off", "none printed or given"]
    rows = [[*key, sum(found.values()), *map(found.get, ends)] for key, found in kinds.items()]
    print(Shown("By architecture", ["program", "architecture", "records", *ends], sorted(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What every reader of a box answers to the texts of tests/data/readers.jsonl, and that no damage to them raises.

A row ``says`` what it shows. ``of`` are the sources of a bundle (text, or [status, why, text]) and ``gives`` what each reader
answers; or ``text`` is what the reader ``reads``. ``sample:`` and ``shared:`` name a file, the latter beside this checkout.
"""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from data_rows import read_lines
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plain

from helpers.look.bundle import BundleWriter, Text
from helpers.look.printed import printed_lines

HERE = Path(__file__).resolve().parent
PLACES = {
    "sample": HERE / "samples",
    "shared": HERE.parents[1] / "shared" / "samples" / "smi",
}
ROWS = read_lines("readers")
CASES = [
    (row, name) for row in ROWS for name in ([row["reads"]] if "reads" in row else row["gives"])
]
OF_WORDS = ("drm.parse_fdinfo", "kernel_log.parse", "kfd.gfx_name")


def content(words):
    """The text of a row, read from the file that it names."""
    place, _, name = words.partition(":") if isinstance(words, str) else ("", "", "")
    if place not in PLACES or "\n" in name:
        return words
    if not PLACES[place].is_dir():
        pytest.skip(f"no {PLACES[place]}")
    return (PLACES[place] / name).read_text()


def texts(row):
    """(text or None, status, why) of each source of a row."""
    if "text" in row:
        whole = (content(row["text"]), row.get("status", "ok"), row.get("why", ""))
        return {row.get("source", "tool"): whole}
    held = {}
    for source, given_ in row["of"].items():
        row_ = [*given_, None] if isinstance(given_, list) else ["ok", "", given_]
        status, why, words = row_[:3]
        held[source] = (None if words is None else content(words), status, why)
    return held


def answer(row, name, held):
    module, function = name.split(".")
    read = getattr(import_module(f"helpers.look.{module}"), function)
    if "text" in row:
        ((source, (words, status, why)),) = held.items()
        bare = name in OF_WORDS or module == "ttm"
        text = words if bare else Text(words, status, why, source, "item")
        return read(text, *row.get("more", ()))
    writer = BundleWriter("b", "constructed", "0", "2026-01-01T00:00:00Z")
    for source, (words, status, why) in held.items():
        writer.add("file", source, words, status=status, why=why)
    return read(writer.bundle())


@pytest.mark.parametrize(("row", "name"), CASES, ids=[f"{n}: {row['says']}" for row, n in CASES])
def test_a_reader_says_what_the_text_says(row, name):
    expected = row["gives"] if "reads" in row else row["gives"][name]
    found = plain(answer(row, name, texts(row)))
    # A posted log's own words are not kept here.
    if name == "kernel_log.parse" and "text" in row and str(row["text"]).startswith("shared:"):
        found = [{key: value for key, value in one.items() if key != "text"} for one in found]
    assert found == expected


def test_every_posted_sample_of_a_tool_or_the_kernel_is_read_here():
    if not PLACES["shared"].is_dir():
        pytest.skip("no shared samples beside this checkout")
    whole = (HERE / "data" / "readers.jsonl").read_text()
    ours = tuple("rocm-smi_ amd-smi_ rocminfo_ nvidia-smi_q_x dmesg fdinfo kfd lsmod".split())
    names = [path.name for path in PLACES["shared"].iterdir() if path.name.startswith(ours)]
    tables = [name for name in names if name.startswith("rocm-smi_showpids_")]
    for name in tables:
        text = (PLACES["shared"] / name).read_text()
        pids = [int(pid) for pid in re.findall(r"^(\d+)\t", text, re.MULTILINE)]
        assert [line.pid for line in printed_lines(text) if line.pid is not None] == pids
    left = [name for name in names if f"shared:{name}" not in whole]
    assert [name for name in left if name not in (*tables, *UNREAD)] == []


UNREAD = ("amd-smi_default_table_2gpu.txt", "rocm-smi_showpids.json")
JUNK = st.text(max_size=8) | st.sampled_from(
    ["-1", "9" * 30, *'null { [ " \x00 <a> &x; \x1b[31m N/A 0:01:00.0'.split(), "\n"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | JUNK,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(JUNK, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def damage(draw, words):
    """The text cut, with something put into it, its lines in another order, or a field of a table with another value."""
    at = draw(st.integers(0, len(words)))
    length = draw(st.integers(0, 40))
    lines = words.splitlines(keepends=True) or [""]
    try:
        row = json.loads(lines[at % len(lines)])
        key = draw(st.sampled_from(sorted(row)))
        lines[at % len(lines)] = json.dumps({**row, key: draw(VALUES)}) + "\n"
        return "".join(lines)
    except (ValueError, TypeError):
        pass  # no table of JSON lines
    kinds = [words[:at], words[:at] + draw(JUNK) + words[at + length :], words + words[at:]]
    return draw(st.sampled_from([*kinds, "".join(reversed(lines))]))


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_no_damage_to_a_text_breaks_its_reader(data):
    row, name = data.draw(st.sampled_from(CASES))
    held = {
        source: (data.draw(damage(words)) if isinstance(words, str) else words, status, why)
        for source, (words, status, why) in texts(row).items()
    }
    plain(answer(row, name, held))

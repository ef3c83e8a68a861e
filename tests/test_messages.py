"""What is read off a failure message, in every wording, wrapping and number format, and what its sums say.

What single texts say stands in tests/data/messages.jsonl, what their numbers add up to in tests/data/sums.jsonl.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from data_rows import read_lines
from examples import examples
from fuzz_messages import MESSAGES, mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from pythons import starts

from helpers.ground.grammar import squeeze
from helpers.ground.tables import data
from helpers.ground.units import Quantity
from helpers.judge.message_account import account_of
from helpers.look import wordings
from helpers.look.messages import MESSAGES_LIMIT, read_message, without_footers
from helpers.look.squeezed import prefix

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
GIB = 1 << 30


TEXTS = read_lines("messages")
SUMS = read_lines("sums")
SHARED = ROOT.parent / "shared"
NEW: str = TEXTS[0]["text"]
"""A message of torch 2 with every number it can have."""


def words(row):
    """The text of a row, or of the file beside this checkout that it names."""
    name = row["text"].partition("shared:")[2]
    if name and not SHARED.is_dir():
        pytest.skip("no ../shared beside this checkout")
    return (SHARED / "samples/smi" / name).read_text() if name else row["text"]


def one(text):
    reading = read_message(text)
    assert len(reading.messages) == 1, reading
    return reading.messages[0]


def texts(message):
    sizes = ((name, value) for name, value in vars(message).items() if isinstance(value, Quantity))
    return {name: value.text for name, value in sizes}


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: row["says"])
def test_a_text_names_its_failures_with_their_numbers(row):
    reading = read_message(words(row))
    found = []
    for message in reading.messages:
        names = ("row", "program", "side", "event", "backend", "device", "pids", "hints")
        gives = {name: getattr(message, name) for name in names}
        gives.update(texts(message), others=[size.text for size in message.others])
        found.append({k: v for k, v in gives.items() if v not in ("", None, (), [])})
    assert json.loads(json.dumps(found)) == row["gives"]
    assert found or reading.unused


def test_a_number_has_its_precision_and_a_message_its_words():
    message = one(NEW)
    assert message.reserved_unallocated == Quantity(1406601789, 5368710, "1.31 GiB")
    assert message.requested and message.requested.bytes == 36 * MIB
    assert message.words.startswith("torch.OutOfMemoryError: CUDA out of memory.")


@pytest.mark.parametrize("size", ["1e99 GiB", "12e+3 GiB", "1.5E-3 GiB"])
def test_a_number_with_an_exponent_is_no_size_and_its_first_digits_are_none_either(size):
    message = one(NEW.replace("36.00 MiB", size))
    assert message.requested is None and message.capacity and message.capacity.text == "15.77 GiB"


@pytest.mark.parametrize(
    "line",
    [
        "x " * 750 + "RuntimeError: CUDA error: device-side assert triggered",
        json.dumps({f"k{n}": "v" * 120 for n in range(10)})[:-1]
        + ', "error": "RuntimeError: CUDA error: device-side assert triggered"}',
        "RuntimeError: CUDA error: device-side assert triggered " + "x " * 750,
    ],
)
def test_of_a_long_line_the_failure_is_quoted(line):
    assert len(line) > 1300
    assert "CUDA error: device-side assert triggered" in one(line).words


def test_a_line_that_is_short_enough_is_quoted_whole():
    line = "step 12 " * 30 + "CUDA error: device-side assert triggered"
    assert one(line).words == line


def lined(width, before="", after="", to="(?: |$)"):
    """Each so many characters of a text on a line of their own."""
    pieces = re.compile(f".{{1,{width}}}{to}")
    return lambda text: "\n".join(before + line + after for line in pieces.findall(text))


@pytest.mark.parametrize(
    "wrap",
    [
        lined(37, to=""),
        lined(61, "[rank5]: "),
        lined(50, "> > "),
        lined(58, "│ ", "   │"),
        lined(70, "2026-02-03T04:05:06.123456Z stderr F ", to=""),
        lined(80, "trainer-1  | "),
        lambda text: "\x1b[36m(Worker pid=31)\x1b[0m " + text.replace("GiB", "\x1b[1mGiB\x1b[22m"),
        lambda text: text.replace(". ", ".\\n"),
        lambda text: text.upper(),
        lambda text: text.replace(" GiB", "\u00a0GiB"),
        lambda text: "x" * 5000 + " " + text + " " + "y" * 5000,
        lambda text: "\ufffd" * 9 + text,
    ],
)
def test_wrapping_prefixes_and_colours_change_no_number(wrap):
    assert texts(one(wrap(NEW))) == texts(one(NEW)) and one(wrap(NEW)).pids == (7101, 7102)


@pytest.mark.parametrize("path", [
    r'"C:\Users\tom\new env\torch\bin\x.dll"', r"E:\runs\train.py", r'"D:\\tmp\\nets\\a.pt"',
])  # fmt: skip
def test_a_path_of_windows_is_quoted_with_its_backslashes(path):
    line = f"RuntimeError: CUDA error: out of memory while reading {path}"
    assert one(line).words == line
    quoted = f"step 1\\n{line}\\nTraceback"
    assert path.strip('"') in one(quoted).words and "step 1 Runtime" in one(quoted).words


def test_an_ambiguous_size_is_said_and_the_rest_is_still_read():
    text = NEW.replace("15.77 GiB", "1,577 GiB").replace("13.85 GiB", "17179869184.00 GiB")
    reading = read_message(text)
    assert set(texts(one(NEW))) - set(texts(reading.messages[0])) == {"capacity", "process"}
    assert reading.unused.startswith("2 sizes are ambiguous")


def test_each_form_of_a_prefix_is_looked_through():
    forms = data("look/squeezed")
    for form, example in zip(forms["prefixes"], forms["examples"], strict=True):
        assert re.match(form, example) and prefix(example + "here") == len(example)


def test_two_messages_at_once_stay_apart_and_repeats_count_once():
    second = NEW.replace("GPU 3", "GPU 4").replace("36.00 MiB", "38.00 MiB")
    between = "\nDuring handling:\n"
    reading = read_message(f"{NEW}{between}{second}\n{NEW}\nRuntimeError: CUDA out of memory.\n")
    found = [(m.device, m.requested.text, m.start) for m in reading.messages]
    assert found == [(3, "36.00 MiB", 0), (4, "38.00 MiB", len(NEW + between))]
    assert "1 repeats of the same message" in reading.unused
    assert "without a number" in reading.unused


@pytest.mark.parametrize("text", ["", bytes(range(256)).decode("latin-1") * 9, "\ud800\udfff"])
def test_anything_else_is_an_answer_and_never_a_traceback(text):
    reading = read_message(text)
    assert not reading.messages and reading.unused


@pytest.mark.parametrize("at", [0, 400, 8192, 8600, (1 << 20) - 300, (1 << 20) + 5])
def test_a_message_is_found_wherever_the_stream_is_cut(at):
    line = "step 12 loss 2.310 tokens/s 4821\n"
    text = (line * (at // len(line) + 1))[:at] + "\n" + NEW + "\n" + line * ((1 << 20) // len(line))
    reading = read_message(text)
    assert [m.start for m in reading.messages] == [at + 1]
    assert texts(reading.messages[0]) == texts(one(NEW))


def test_very_many_different_messages_are_bounded():
    line = "CUDA out of memory. Tried to allocate {}.00 MiB\n"
    reading = read_message("".join(map(line.format, range(1000))))
    assert len(reading.messages) == MESSAGES_LIMIT
    assert "800 more messages" in reading.unused


# -- sums


def test_the_sums_say_who_has_what():
    sums = account_of(one(NEW))
    assert sums.reserved and sums.reserved.text == "13.51 GiB"
    assert sums.context and sums.context.text == "348.16 MiB"
    rest = int((15.77 - 13.85 - 1.25) * GIB - (22.38 + 640) * MIB)
    assert sums.unaccounted and abs(sums.unaccounted.bytes - rest) < 9
    assert sums.stranded and sums.stranded.text == "1.31 GiB" and sums.beyond_limit is False
    rounded = "torch rounds up to 2 MiB"
    assert (
        "asked for 36.00 MiB: " + rounded in sums.lines[0]
        and "over 34.00 MiB and at most 36.00 MiB" in sums.lines[0]
    )
    begins = "in use 15.75 GiB - this process 13.85 GiB - 1.25 GiB - 640.00 MiB = "
    assert any(line.startswith(begins) for line in sums.lines)


@pytest.mark.parametrize("row", SUMS, ids=lambda row: row["says"])
def test_what_the_numbers_of_a_message_add_up_to(row):
    sums = account_of(one(words(row)))
    assert set(sums.contradictions) <= set(sums.lines)
    if "fragmentation" in row:
        expected = row["fragmentation"], row["beyond_limit"]
        assert (sums.fragmentation, sums.beyond_limit) == expected
    assert row.get("first_line", "") in (sums.lines or [""])[0]
    assert row.get("contradiction", "") in "\n".join(sums.contradictions)
    assert not (row["text"].startswith("shared:") and sums.contradictions)


def test_no_posted_text_raises_and_each_torch_number_is_read():
    known = {row["text"] for row in TEXTS}
    assert all(f"shared:{path.name}" in known for path in SHARED.glob("samples/smi/torch_*"))
    for path in sorted((SHARED / "cases").glob("*.json")):
        text = json.loads(path.read_text())["evidence"].get("error_text") or ""
        reading = read_message(text)
        assert reading.messages or reading.unused, path.name
        if "Tried to allocate" in text:
            assert any(message.requested for message in reading.messages), path.name
        for message in reading.messages:
            account_of(message)


def test_idle_private_pools_are_not_counted_as_needed():
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 0 bytes is "
        "free. Of the allocated memory 15.00 GiB is allocated by PyTorch, with {} allocated in private pools (e.g., CUDA "
        "Graphs), and 2.50 GiB is reserved by PyTorch but unallocated."
    )
    assert account_of(one(text.format("4.00 GiB"))).fragmentation == "possible"
    assert account_of(one(text.format("64.00 MiB"))).fragmentation == "excluded"


def test_in_a_container_the_named_process_can_be_this_one():
    text = (
        "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 31.70 GiB of which 4.20 GiB is "
        "free. Process 60011 has {} memory in use. Of the allocated memory 16.00 GiB is allocated by PyTorch, and 10.60 GiB "
        "is reserved by PyTorch but unallocated."
    )
    own = account_of(one(text.format("27.30 GiB")))
    assert own.own_pid == 60011 and not own.contradictions
    assert own.context and own.context.text == "716.80 MiB"
    other = account_of(one(text.format("256.00 MiB")))
    assert other.own_pid is None and other.unaccounted and other.unaccounted.text == "665.60 MiB"


# -- hostile


@settings(max_examples=examples(50), deadline=None)
@given(st.text(max_size=400) | st.integers(0, 2**32).map(lambda seed: mutated(random.Random(seed))))
def test_no_text_makes_it_raise(source):
    reading = read_message(source)
    assert reading.messages or reading.unused
    for message in reading.messages:
        assert account_of(message).fragmentation in ("excluded", "possible", "likely", "unknown")


def test_mutated_messages_are_read_without_a_fault():
    dice = random.Random(7)
    for _ in range(500):
        text = mutated(dice)
        reading = read_message(text)
        assert (reading.messages or reading.unused) and "\n" not in reading.unused
        for message in reading.messages:
            sums = account_of(message)
            assert sums.fragmentation in ("excluded", "possible", "likely", "unknown")
            assert 0 <= message.start <= len(text) and len(message.words) <= 400
            assert not any("\n" in line for line in sums.lines)
            for size in message.numbers:
                assert 0 <= size.precision_bytes <= size.bytes + (1 << 40)


def test_every_message_of_the_fuzz_is_read_whole():
    for text in MESSAGES:
        assert read_message(text).messages and "ambiguous" not in read_message(text).unused, text


PIECES = "out of memory |torch.OutOfMemoryError: |9|Tried to allocate 9.99 GiB |< |process 1 has |failed to allocate "
LINES = 'CUDA error: |memory.available="|[0] |killed\n|a\n'


@pytest.mark.parametrize("piece", f"{PIECES}|{LINES}".split("|"))
def test_hostile_text_costs_no_more_than_its_length(piece):
    assert read_message(piece * (100_000 // len(piece))) is not None


def test_reading_a_message_loads_only_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import helpers.look.messages; "
        "print(*{n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["helpers"]


def test_a_plain_python_3_8_reads_a_message():
    """Where one is installed: `diagnose` needs no more than it."""
    place = starts("python3.8")
    if not place:
        pytest.skip("no python3.8 here")
    code = "from helpers.look.messages import read_message; print(read_message('No HIP GPUs are available').messages[0].row)"
    assert subprocess.check_output([place, "-c", code], cwd=ROOT, text=True) == "torch-no-gpus\n"


# -- the table


SIDES = frozenset("device pinned host cgroup shm on-chip commit disk none".split())
EVENTS = frozenset(
    "refused refused-by-limit no-room-at-start no-room-for-cache no-room-for-model workspace "
    "collective killed sigkill fault assert reset no-kernel mismatch missing-library no-device "
    "no-access no-node wrong-index unknown-option setting-refused option-refused option-broken duplicate-gpu "
    "driver-refused leak busy stopped system-limit allocation-limit address-space not-killed number-refused profiling-disturbed "
    "reset-refused missing-link hang gpu-lost gpu-silent card-failed start-refused init-failed cma-refused bar1-refused "
    "arguments-above-limit no-room-for-scratch refused-by-estimate setting-unread sizes note footer".split()
)
ALL = wordings.table()
FOOTERS = [row for row in ALL if row["event"] == "footer"]
NOTES = [row for row in ALL if row.get("log") and row["event"] == "note"]
ROWS = [row for row in ALL if row not in FOOTERS and row not in NOTES]
# A line that begins with FATAL: has a level of its log there, a number may go on with the line before it, and a ">" that a
# wrap brings to the front of a line is a quoting mark there.
UNWRAPPED = ("hsa-fatal", "deepspeed-estimate")
WRAPPED = [row for row in ROWS if "form" in row and " > " not in row["example"]]
WRAPPED = [row for row in WRAPPED if row["id"] not in UNWRAPPED]


def check(row, text):
    found = [message for message in read_message(text).messages if message.row == row["id"]]
    assert found, (row["id"], text, [message.row for message in read_message(text).messages])
    for name, expected in row.get("reads", {}).items():
        value = getattr(found[0], name)
        many = value if isinstance(value, tuple) else (value,)
        plain = [one.bytes if isinstance(one, Quantity) else one for one in many]
        seen = plain if isinstance(value, tuple) else plain[0]
        if not isinstance(expected, str):
            expected = pytest.approx(expected, rel=1e-6, abs=1)
        assert seen == expected, (row["id"], name, text)


def test_every_row_has_what_a_reader_of_the_table_needs():
    ids = [row["id"] for row in ALL]
    assert len(ids) == len(set(ids))
    for row in ALL:
        assert row["source"] and row["says"] and row["example"] and row["program"], row["id"]
        assert row["side"] in SIDES and row["event"] in EVENTS, row["id"]
        assert ("form" in row) != ("pattern" in row), row["id"]
        literal = row.get("literal", "")
        assert literal == literal.lower() and literal in row["example"].lower(), row["id"]


def test_every_template_compiles_and_has_words_to_look_for():
    for row in wordings.rows():
        for form in (*row.forms, *row.clauses):
            assert form.pattern and all(len(anchor) > 2 for anchor in form.anchors), form.text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_example_of_a_row_is_read_as_that_row_also_under_a_log_prefix(row):
    lines = row["example"].splitlines()
    check(row, row["example"])
    check(row, "\n".join("2026-02-03 04:05:06,789 " + line for line in lines))
    check(row, "\n".join("[rank3]: " + line for line in lines))
    check(row, "step 12 done\n" + row["example"] + "\nstep 13 done\n")


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(WRAPPED), st.integers(8, 120), st.booleans())
def test_an_example_is_read_wrapped_at_any_column(row, width, prefixed):
    text = row["example"].replace("\n", " ")
    prefix = "[rank3]: " if prefixed else ""
    check(row, "\n".join(prefix + text[at : at + width] for at in range(0, len(text), width)))


@pytest.mark.parametrize("row", FOOTERS, ids=lambda row: row["id"])
def test_a_footer_is_no_message_and_leaves_blanks(row):
    assert not read_message(row["example"]).messages
    text = f"first line\n{row['example']}\nlast line"
    left = without_footers(text)
    assert len(left) == len(text)
    assert left.startswith("first line\n") and left.endswith("\nlast line")
    assert len("".join(left.split())) < len("firstlinelastline") + 22


def test_a_failure_without_its_footers_is_what_is_left():
    footers = [row["text"] for row in TEXTS if row["says"].startswith("a failure with all of its")]
    for text in footers:
        left = " ".join(word for word in without_footers(text).split() if word != ".")
        assert left == text.splitlines()[0]


# -- the compiler of templates


LITERALS = st.text("abcdefgh XYZ:.,()[]+*^$-", min_size=1, max_size=12).filter(squeeze)
FIELDS = st.sampled_from(["requested", "free", "device", "tokens", "share"])


@st.composite
def templates(draw):
    """A template and a text that fits it."""
    template = "needle"
    text = "needle"
    for _ in range(draw(st.integers(0, 5))):
        what = draw(st.integers(0, 4))
        words = draw(LITERALS)
        other = draw(LITERALS)
        more = fits = words
        if what == 1:
            value = {"device": "3", "tokens": "4096", "share": "0.9"}
            name = draw(FIELDS)
            more = f"; {{{name}}};"
            fits = f"; {value.get(name, '1.50 GiB')};"
        elif what in (2, 3):
            more = f"<{words}|{other}>;" if what == 2 else f"<?{words}>;"
            fits = draw(st.sampled_from([words, other if what == 2 else ""])) + ";"
        elif what == 4:
            more = "{..40}!stop!"
            fits = draw(st.text("xyz ", max_size=40)) + "!stop!"
        template = template + more
        text = text + fits
    return template, text


@settings(max_examples=examples(300), deadline=None)
@given(templates())
def test_a_template_finds_what_was_made_from_it(made):
    template, text = made
    compiled = wordings.Template(template)
    flat = squeeze(text)
    assert compiled.among(flat) and compiled.pattern.search(flat), made


@settings(max_examples=examples(300), deadline=None)
@given(st.text("ab<>{}|?\\. :requested0", max_size=40))
def test_any_text_is_a_template_or_refused_in_one_line(text):
    try:
        assert wordings.Template(text).pattern
    except ValueError as error:
        assert "\n" not in str(error)

"""Views: aligned, honest about what is not known, safe to show whatever a box calls its processes, the same in every form."""

import dataclasses
import re
import subprocess

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tell_boxes import APU, BLIND, CARDS, EVENTS, HOST_POOLS, at, event, read

from helpers.ground.shapes import CAUSES, causes, not_allowed, not_available, seen
from helpers.ground.units import GIB, MIB, columns_of, cut, plain
from helpers.judge.ceilings import ceilings
from helpers.judge.evidence import evidence_from_message
from helpers.look.boxes import open_box
from helpers.look.wordings import lines as log_lines
from helpers.tell import resources, shown, tables
from helpers.tell.message import message_table
from helpers.tell.prose import one_line, typed, uncoloured
from helpers.tell.resources import words
from helpers.tell.sanitise import clean_html
from helpers.tell.shown import Shown
from helpers.tell.values import Column

NOT_THERE = not_available("no such file", "bytes", "/sys/x")
ANY_TEXT = st.text(alphabet=st.characters())
LONG = Shown(
    "Long",
    ["name", Column("held", "bytes"), "source"],
    [["word " * 12, 3 * GIB, "/sys/" + "s" * 90], ["b", NOT_THERE, ""]],
    ["a note"],
)


def table(rows, columns, widest=shown.WIDEST, wide=None):
    return Shown("", columns, rows, widest=widest).text(wide)


@given(ANY_TEXT)
@settings(max_examples=examples(100))
def test_text_made_plain_holds_nothing_that_steers_a_terminal_and_stays_as_it_is(text):
    once = plain(text)
    assert once.isprintable() and once.encode("utf-8") is not None and plain(once) == once


def test_control_characters_are_spelt_out_not_dropped():
    assert plain("a\x1b[2Jb\u202ec\udc80\u00a0d\n") == "a\\x1b[2Jb\\u202ec\\udc80 d\\x0a"
    assert plain("\U000e0041") == "\\U000e0041"
    assert uncoloured("\x1b[31mred\x1b[0m\r\n\tnext\x07") == "red\n\tnext\\x07"


def test_a_reading_without_a_value_says_why_below_the_table_and_each_reason_once():
    denied = not_allowed("permission denied", "bytes", "/y")
    zero = seen(0, "bytes", "/sys/z")
    rows = [["a", NOT_THERE], ["b", denied], ["c", NOT_THERE], ["d", zero]]
    assert table(rows, ["pool", "total"]).splitlines() == [
        "pool              total",
        "----  -----------------",
        "a     not available (a)",
        "b       not allowed (b)",
        "c     not available (a)",
        "d                   0 B",
        "(a) not available: no such file",
        "(b) not allowed: permission denied",
    ]


def test_there_are_letters_for_more_reasons_than_the_alphabet_has():
    rows = [[not_available(f"reason {n}", "bytes", "x")] for n in range(30)]
    assert table(rows, ["x"]).splitlines()[-4:-2] == [
        "(aa) not available: reason 26",
        "(ab) not available: reason 27",
    ]


def test_rows_keep_their_order_and_each_kind_of_value_its_own_look():
    rows = [["z", 3, True], ["a", 1.5, False], ["m", None, ""]]
    assert table(rows, ["name", "n", "is"]).splitlines() == [
        "name    n  is",
        "----  ---  ---",
        "z       3  yes",
        "a     1.5  no",
        "m       -  -",
    ]


@pytest.mark.parametrize(
    ("unit", "value", "said"),
    [
        ("bytes", 3 * GIB, "3.00 GiB"),
        ("bytes", 5 * MIB, "5.00 MiB"),
        ("bytes", 0, "0 B"),
        ("s", 245, "4 min 05 s"),
        ("0.1 s", 245, "245.0 s"),
        ("", 7, "7"),
    ],
)
def test_a_number_is_written_in_its_columns_unit_and_stays_a_number_in_the_rows(unit, value, said):
    view = Shown("", [Column("x", unit)], [[value]])
    assert str(view).splitlines()[2] == said and view.rows == [{"x": value}]


def test_wide_and_combining_characters_do_not_shift_a_column():
    lines = table([["計算", 1], ["e\u0301", 22], ["plain", 333]], ["process", "n"]).splitlines()
    assert {columns_of(line) for line in lines} == {columns_of(lines[0])}


def test_a_long_name_is_cut_and_a_source_never():
    view = Shown("", ["process", "source"], [["n" * 90, "/sys/" + "s" * 90]])
    assert str(view).splitlines()[2] == "n" * 47 + "…  " + "/sys/" + "s" * 90
    whole = table([["n" * 90]], ["x"], widest=None, wide=80).splitlines()
    assert whole[2:] == ["n" * 80, "n" * 10], "a command's table is as wide as its terminal"


@given(st.text(alphabet=st.characters(categories=["Lo", "Mn", "Ll"])), st.integers(2, 12))
@settings(max_examples=examples(50))
def test_cutting_never_leaves_more_columns_than_asked_for(text, columns):
    assert columns_of(cut(text, columns)) <= columns
    assert cut(text, columns_of(text)) == text


def test_a_folded_views_line_ends_with_a_whole_word_and_a_long_path_may_break_after_a_slash():
    assert one_line("weights " * 30).endswith("weights …") and one_line("x" * 200).endswith("x…")
    assert one_line("a line\nof two") == "a line of two"
    path = "/sys/class/drm/card1/device/mem_info"
    page = clean_html(Shown("t", ["source"], [[path]]).html())
    assert (
        "<wbr>".join(re.findall("[^/_]*[/_]?", path)[:-1]) in page and f">{path[:14]}" not in page
    )
    assert "<wbr>" not in Shown("t", ["source"], [["/proc/meminfo"]]).html()


def test_an_empty_table_says_so_and_a_short_row_is_refused():
    assert table([], ["pid", "name"]) == "pid, name: none."
    nobody = Shown("Who", ["pid"], [], none="Nobody.")
    assert str(nobody) == nobody.alt == "Nobody." and "Nobody." in nobody.html()
    with pytest.raises(ValueError, match="a row of 1 cells: expected 2, one for each of pid, name"):
        table([[1]], ["pid", "name"])


def test_a_table_too_wide_for_a_terminal_is_wrapped_and_nothing_of_it_is_lost(monkeypatch):
    text = LONG.text(60)
    assert max(map(columns_of, text.splitlines())) <= 60 and text.endswith("\na note")
    letters = re.sub(r"\s", "", text)
    assert "word" * 4 in letters.replace("3.00GiB", "") and letters.count("s") > 90
    assert LONG.text(400) == LONG.text() == str(LONG)
    cells = LONG.text(12).split("\n\n")
    assert len(cells) > len(LONG.cells) and cells[0].startswith(LONG.columns[0].name + ": ")


@pytest.mark.parametrize(
    "words",
    [
        "a 'b   c' \"d ; e\" f | g && h",
        "first " * 12 + "; " + "second " * 14 + "; third",
        "one " * 20 + "| cat; " + "two " * 30 + "&& echo 'three # no comment'",
        "x" * 90 + " y " + "z" * 90,
        "a  # a comment that is long " + "word " * 30,
        "    [ -e /nowhere ] || echo " + "w " * 60,
    ],
)
def test_a_command_too_long_for_a_line_is_broken_so_that_a_shell_does_the_same(words):
    command = "echo " + words.replace("; ", "; echo ").replace("&& ", "&& echo ")
    lines = typed(command.replace("| g", "| cat"))
    done = [
        subprocess.check_output(["sh", "-c", text], text=True)
        for text in (command.replace("| g", "| cat"), "\n".join(lines))
    ]
    assert done[0] == done[1] and done[0]
    assert all(len(line) <= 80 or len(line.split()) <= 2 for line in lines)


def test_on_a_terminal_it_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    assert str(LONG) == LONG.text(50) != LONG.text()


def test_the_html_holds_every_cell_whole_and_nothing_of_a_box_is_markup():
    evil = Shown("<i>'", ["<b>", "pid"], [["<script>alert(1)</script>" * 4, "12"]], ["<u>"])
    html = evil.html()
    assert html.count("&lt;script&gt;") == 4 and not re.search("<(script|b|i|u)>", html)
    assert "<td class=number>12</td>" in html
    assert "not available (a)" in LONG._repr_html_() and "no such file" in LONG._repr_html_()


def test_a_view_is_a_table_in_a_notebook_and_a_frame_to_go_on_with(monkeypatch):
    data, more = LONG._repr_mimebundle_()
    assert data["text/plain"] == str(LONG)
    assert more == {"casebook": {"says": LONG.says, "again": False}} and "3.00 GiB" in LONG.says
    assert "<script>" in data["text/html"] and "position:sticky" in data["text/html"]
    # JupyterLab sets td right with two classes and a not(): one class of ours would lose
    assert ".casebook.casebook table :is(td,th)" in data["text/html"]
    assert "src=" not in data["text/html"] and "http" not in resources.template("table.js")
    # an untrusted notebook loses scripts and style sheets, and would set words right
    bare = re.sub("<(style|script)>.*?</\\1>", "", data["text/html"], flags=re.DOTALL)
    assert re.search("<td style='text-align:left'>b</td>", bare) and "<td class=number>" in bare
    rows = LONG.table().to_pylist()
    assert [row["held"] for row in rows] == [3 * GIB, None] and rows[1]["name"] == "b"
    mixed = Shown("", ["x", "y"], [[1, True], ["many", False]]).table().to_pydict()
    assert mixed == {"x": ["1", "many"], "y": [True, False]}
    assert Shown("", ["x"], []).table().column_names == ["x"]


def test_a_frame_without_pandas_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pandas is not installed") as error:
        LONG.frame()
    assert "\n" not in str(error.value)


def test_the_rows_that_are_asked_for_make_a_table_of_their_own():
    view = Shown("Sizes", ["name", "size"], [["a", 0], ["b", 3]])
    assert [row["name"] for row in view.only("size").rows] == ["b"]
    assert "No size." in str(Shown("Sizes", ["size"], [[0]]).only("size", none="No size."))


def test_a_page_drops_the_script_of_a_table_and_nothing_else():
    clean = clean_html(LONG._repr_html_())
    assert "script" not in clean and "sticky" not in clean
    assert clean == clean_html(LONG.html()) and clean.count("<td") == 6 and "a note" in clean
    assert '<td class="number">3.00 GiB</td>' in clean


def test_the_alt_text_names_numbers_where_there_are_several_and_leaves_out_sources():
    said = Shown("Pools.", ["pool", "n", "m", "source"], [["a", 1, 2, "/x"], ["b", None, 4, "/y"]])
    assert said.alt == "Pools: a n 1, m 2; b m 4."
    nowhere = Shown("Pools", ["pool", "n", "m"], [["a", NOT_THERE, NOT_THERE]])
    assert nowhere.alt == "Pools: a n not available, m not available."
    assert LONG.alt.startswith("Long: word word") and LONG.alt.endswith(
        "3.00 GiB; b not available. a note."
    )
    many = Shown("Many", ["x"], [["row"]] * 40)
    assert many.alt.endswith(f"; and {40 - shown.MOST_SPOKEN} more.")


def test_each_index_space_of_a_gpu_has_its_column():
    first, second = tables.gpus_table([APU, *CARDS]).rows[:2]
    assert first["GPU"] == "0000:c5:00.0" and first["kind"] == "integrated"
    assert (first["torch"], first["rocm-smi"]) == ("0", "") and second["rocm-smi"] == "0"


def test_pools_without_sources_hold_no_path():
    assert "/sys" in str(tables.pools_table([APU, *HOST_POOLS]))
    assert "/sys" not in str(tables.pools_table([APU, *HOST_POOLS]).without("source"))


def test_holders_name_what_nobody_seen_holds_and_what_cannot_be_seen():
    view = tables.holders_table([*CARDS, BLIND])
    rest = [row["memory"].show() for row in view.rows if row["process"] == "no visible process"]
    assert rest == ["12.07 GiB", "20.48 MiB", "not available: the pool's use is unknown"]
    hidden = "Not seen on 0000:03:00.0: fdinfo of 212 processes: not allowed (needs CAP_SYS_PTRACE)"
    assert hidden in view.notes and "\\x1b[31m<script>" in str(view) and "\x1b" not in str(view)


def test_events_stand_with_their_time_and_the_log_they_are_from():
    view = tables.events_table(EVENTS, log=seen("dmesg", "text", "dmesg"))
    (fault,) = [row for row in view.rows if row["kind"] == "GPU page fault"]
    assert (fault["time"], fault["boot"], fault["lines"]) == ("1 h 07 min 02 s", 0, 12)
    assert view.notes == ["The log of this boot: dmesg"] and tables.events_table([]).notes == []


def test_of_very_many_events_forty_are_shown_the_worst_first_and_the_rest_counted():
    quiet = [event for event in EVENTS if event.kind == "gtt_ready"] * 60
    view = tables.events_table([*quiet, *EVENTS])
    assert view.html().count("<tr>") == 41
    for told in (str(view), view.html()):
        assert "GPU reset" in told and f"and {len(view.rows) - 40} more rows" in told
    assert len(view.rows) == len(quiet) + len(EVENTS)


def test_every_code_that_is_shown_has_its_own_words():
    kinds = tables.kind_words()
    assert {rule.kind for rule in log_lines(log=True)} <= set(kinds)
    assert all(row.keys() <= {"kind", "words", "harmless"} for row in words("rows")["events"])
    for told in ("says", "name"):
        assert len({row[told] for row in causes().values()}) == len(CAUSES) + 1
    layers = {
        row.layer
        for name in ("strix-halo-1-found", "cpu-only")
        for row in ceilings(open_box(name))[0].rows
    }
    assert layers - {"", None} <= set(words("layers")) and all(
        len(row) == 2 for row in words("rows")["mistaken"]
    )


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (at(0.84), "0.8 s"),
        (at(9.99), "10.0 s"),
        (at(10), "10 s"),
        (at(59.4), "59 s"),
        (at(60), "1 min 00 s"),
        (at(245), "4 min 05 s"),
        (at(3600), "1 h 00 min 00 s"),
        (at(11241), "3 h 07 min 21 s"),
        (at(195_000), "2 d 06 h 10 min"),
        (at(1e13), "10000000000000.0"),
        (at("Nov 21 03:11:02"), "Nov 21 03:11:02"),
        (
            not_available("the line has no time", "count", "x"),
            "not available: the line has no time",
        ),
    ],
)
def test_a_moment_reads_as_a_person_says_it(when, said):
    assert tables.since_boot(when) == said


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["/sys/d/total", "/sys/d/total - /sys/d/used"], "/sys/d/{total, used}"),
        (["/proc/meminfo", "/proc/meminfo - /proc/meminfo"], "/proc/meminfo"),
        (["rocm-smi --json", "/sys/d/total"], "rocm-smi --json; /sys/d/total"),
        (["/sys/d/total", "/proc/meminfo", ""], "/sys/d/total; /proc/meminfo"),
    ],
)
def test_sources_in_one_folder_are_named_together_and_those_of_a_sum_are_taken_apart(sources, said):
    assert tables.one_source([read(1, source) for source in sources]) == said


def test_a_process_named_in_the_log_is_shown_with_its_number():
    assert tables.who(EVENTS[1]) == "python (5512)"
    assert tables.who(dataclasses.replace(EVENTS[1], process="")) == "pid (5512)"
    assert tables.who(event("boot", at(0.0), 0, "Linux")) == ""


def test_every_number_that_a_message_names_is_listed():
    text = "model weights take 15.25GiB; non_torch_memory takes 0.50GiB; PyTorch activation peak memory takes 1.75GiB; "
    text += "the rest of the memory reserved for KV Cache is 3.75GiB."
    rows = message_table(evidence_from_message(text)).rows
    sizes = {row["number"]: row["bytes"] / GIB for row in rows}
    assert sizes == {"non torch": 0.5, "weights": 15.25, "cache": 3.75, "buffer": 1.75}
    assert {row["as printed"] for row in rows} >= {"15.25 GiB", "3.75 GiB"}


def test_a_table_whose_title_is_its_first_line_says_it_once():
    view = Shown("it grows", ["line"], [["a.py:1"]], before=["it grows", "and more", ""])
    assert re.sub("<[^>]+>", "\n", view.html()).split("<style")[0].count("it grows") == 1
    assert "and more" in view.html() and str(view).startswith("it grows\n")

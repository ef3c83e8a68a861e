"""Outputs that nobody vouches for: what can act or reach out goes, what draws and reads stays, and what is cut says so."""

import io
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.batch.notebook_file import read_notebook
from helpers.tell import sanitise
from helpers.tell.page_cells import cells
from helpers.tell.page_room import PageRoom, cut_text
from helpers.tell.sanitise import clean_html
from helpers.tell.svg import SVG, clean_svg

FOLDER = Path(__file__).parent
HOSTILE_HTML = (FOLDER / "data" / "hostile_html.txt").read_text().splitlines()
HOSTILE_SVG = (FOLDER / "data" / "hostile_svg.txt").read_text().splitlines()
PIECES = '<p> </p> <table> <tr> <td> </table> text < > " &lt; <pre> </ <!-- --> <svg> <math> <select> ]]> <title>'
few = settings(max_examples=50, deadline=None)
new_output = nbformat.v4.new_output


class OnlyHarmless(HTMLParser):
    """Fails where a tag, an attribute or a comment is left that is not on the list."""

    def __init__(self, text):
        super().__init__()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert tag in sanitise.TAGS
        for name, value in attrs:
            assert name in ("colspan", "rowspan") and 0 < int(value) < 1000 and tag in ("td", "th")

    def handle_comment(self, data):
        raise AssertionError(data)


@pytest.mark.parametrize("html", HOSTILE_HTML)
def test_html_that_acts_or_reaches_out_keeps_at_most_its_words(html):
    clean = clean_html(f"<p>before</p>{html}")
    OnlyHarmless(clean)
    assert clean.startswith("<p>before</p>") and "alert" not in re.sub("&lt;.*", "", clean)
    if re.fullmatch(r"<(a|b|p|details|body|table|td).*>w(</\w>)?", html):
        assert "w" in clean.removeprefix("<p>before</p>"), "a word in a harmless place stays"


@given(st.lists(st.sampled_from([*HOSTILE_HTML, *PIECES.split()]), max_size=8))
@few
def test_no_mixture_of_hostile_pieces_gets_through_and_cleaning_again_changes_nothing(pieces):
    clean = clean_html("".join(pieces))
    OnlyHarmless(clean)
    assert clean_html(clean) == clean


FRAME = """\
<div><style scoped>.dataframe{}</style><table border="1" class="dataframe"><thead><tr style="text-align: right;"><th></th>\
<th colspan="2">GiB</th></tr></thead><tbody><tr><th>0</th><td>1.5</td><td>a &lt; b</td></tr></tbody></table></div>"""
CLEAN = """\
<div><table><thead><tr><th></th><th colspan="2">GiB</th></tr></thead><tbody><tr><th>0</th><td>1.5</td><td>a &lt; b</td></tr>\
</tbody></table></div>"""


def test_a_table_of_a_data_frame_stays_a_table_and_headings_stay_apart():
    assert clean_html(FRAME) == CLEAN
    assert clean_html("<h1>one</h1><h2>two</h2>").split() == ["one", "two"]


def test_html_without_words_is_nothing_and_html_that_is_too_long_is_refused():
    assert clean_html("<div><script>alert(1)</script><img src=x></div>") == ""
    with pytest.raises(ValueError, match="HTML of 60004 bytes; shown are at most 60000"):
        clean_html("<b>" + "x" * (sanitise.HTML_LIMIT_BYTES + 1))


def svg(inside, attributes='viewBox="0 0 40 30"'):
    spaces = f'xmlns="{SVG}" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"<svg {spaces} {attributes}>{inside}</svg>"


@pytest.mark.parametrize("inside", HOSTILE_SVG)
def test_an_svg_keeps_what_draws_and_nothing_that_acts_or_reaches_out(inside):
    clean, width, height = clean_svg(svg(f"<path d='M0 0'/>{inside}"))
    words = clean.replace(SVG, "")
    acting = r"alert|//|script|https?:|@import|foreignObject|animate|onload|iframe|set "
    assert (width, height) == (40, 30) and "path" in words and not re.search(acting, words)


def test_references_inside_an_svg_stay():
    defined = "<defs><path id='m1' d='M0 0'/></defs>"
    clean, *_ = clean_svg(svg(f"{defined}<use xlink:href='#m1' x='1' clip-path='url(#c)'/>"))
    assert 'href="#m1"' in clean and "url(#c)" in clean


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ('width="100%" height="50%" viewBox="0 0 64 32"', (64, 32)),
        ('viewBox="-1,-2,64.4,32"', (64, 32)),
        ('viewBox="0 0 20000 1"', None),
        ('viewBox="0 0 1 0"', None),
        ('viewBox="0 0 nan 9"', None),
        ('width="40" height="30"', None),
    ],
)
def test_an_svg_is_as_large_as_its_box(attributes, size):
    clean = clean_svg(svg("<path/>", attributes))
    assert (clean and clean[1:]) == size


ENTITIES = '<!DOCTYPE svg [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>' + svg("<text>&c;</text>")
OUTSIDE = '<!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + svg("<text>&x;</text>")
DEEP = svg("<g>" * 3000 + "</g>" * 3000 + "<script/>")


@pytest.mark.parametrize("text", ["", "<svg", "<html/>", "<b/>", svg(""), ENTITIES, OUTSIDE, DEEP])
def test_what_is_no_svg_that_can_be_trusted_is_none_or_holds_nothing_of_it(text):
    clean = clean_svg(text)
    assert clean is None or (text == DEEP and "script" not in clean[0])


def test_a_figure_of_matplotlib_is_still_drawn():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1))
    out = io.StringIO()
    figure.subplots().plot([1, 2], [3, 4])
    figure.savefig(out, format="svg")
    clean = clean_svg(out.getvalue())
    assert clean is not None and clean[0].count("<path") >= out.getvalue().count("<path") * 0.9


@given(st.text(st.sampled_from("ab \n,"), max_size=900), st.booleans())
@few
def test_text_is_cut_to_its_limit_and_says_how_many_bytes_are_shown_of_how_many(text, end):
    kept = cut_text(text, end, limit=400)
    if len(text) <= 400:
        assert kept == text
        return
    note = re.search(r"\[(\d+) characters left out; .*: (\d+) of (\d+) bytes are shown]", kept)
    left_out, shown, whole = map(int, note.groups())
    assert whole == len(text) == left_out + shown and len(kept) <= 400
    assert cut_text(kept, end, limit=400) == kept


@pytest.mark.parametrize("end", [False, True])
def test_text_is_cut_between_lines_so_that_no_half_of_a_name_is_left(end):
    lines = [f"host name-{i:04d}.example.org" for i in range(60)]
    kept = cut_text("\n".join(lines), end, limit=700).split("\n")
    kept.pop(0 if end else -1)
    assert kept == (lines[-len(kept) :] if end else lines[: len(kept)]) and len(kept) > 10


def test_of_outputs_that_are_too_large_or_of_no_kind_that_is_shown_words_stand():
    trace = ["a long trace\n" * 50_000, "E: the end"]
    outputs = [
        new_output("stream", name="stdout", text="line\n" * 400_000),
        new_output("display_data", data={"text/html": "<b>" * 100_000, "text/plain": "twin"}),
        new_output("display_data", data={"application/json": ["b" * 10**5]}),
        new_output("error", ename="E", evalue="x", traceback=trace),
    ]
    cell = nbformat.v4.new_code_cell("x", outputs=outputs)
    (piece,) = cells(nbformat.v4.new_notebook(cells=[cell]), PageRoom(10**6))
    text, html, data, error = piece.outputs
    assert "of 1999999 bytes are shown" in text.text
    assert html.text == "twin"
    assert data.text == "[application/json is not shown here: 100004 bytes]"
    assert error.text.endswith("E: the end")
    assert sum(len(output.text) for output in piece.outputs) < 60_000


def test_a_notebook_for_another_language_is_read():
    nb = read_notebook(FOLDER / "notebooks" / "was_written_for_another_kernel.ipynb")
    assert nb.cells[1].outputs[0].text == "[1] 3\n"


def test_a_broken_notebook_is_refused_in_one_line():
    with pytest.raises(ValueError, match="broken notebook: ") as raised:
        read_notebook(FOLDER / "notebooks" / "has_broken_cells.ipynb")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("torn", ["", '{"cells": [', "[]", "{}", '{"cells": 3}', "[" * 100_000])
def test_what_is_no_notebook_at_all_is_refused_in_one_line(tmp_path, torn):
    (tmp_path / "torn.ipynb").write_text(torn)
    says = r"torn\.ipynb: no (JSON|nbformat).*; expected a notebook"
    with pytest.raises(ValueError, match=says) as raised:
        read_notebook(tmp_path / "torn.ipynb")
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="cannot be read: .*; expected a notebook"):
        read_notebook(tmp_path)

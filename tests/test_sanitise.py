"""Outputs that nobody vouches for: what can act or reach out goes, what draws and reads stays, and what is cut says so."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tell import sanitise
from helpers.tell.sanitise import clean_html, clean_svg, cut_notebook, cut_text, read_notebook

FOLDER = Path(__file__).parent / "notebooks"
HOSTILE_HTML = [
    "<script>alert(1)</script>",
    "<b onclick=alert(1)>w</b>",
    "<a href='javascript:alert(1)'>w</a>",
    "<iframe src=//e></iframe>",
    "<object data=//e></object>",
    "<embed src=//e>",
    "<meta http-equiv=refresh content='0;url=//e'>",
    "<form action=//e><input>",
    "<img src=//e onerror=alert(1)>",
    "<style>@import url(//e); b{background:url(//e)}</style>",
    "<p style='background:url(//e)'>w",
    "<a href='data:text/html,<script>alert(1)</script>'>w</a>",
    "<svg onload=alert(1)><a xlink:href='javascript:alert(1)'><text>w",
    "<link rel=stylesheet href=//e>",
    "<base href=//e>",
    "<video src=//e><source src=//e></video>",
    "<table background=//e><td>w",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<svg><style><img src=x onerror=alert(1)></style></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<plaintext>",
    "<template><script>alert(1)</script></template>",
    "<div></div></section></main></body><h1>w",
    "<!--[if IE]><script>x</script>-->",
    "<details open ontoggle=alert(1)><summary>w",
    "<xmp><img src=x onerror=alert(1)></xmp>",
    "<b id=verdict class=hero>w</b>",
    "<scr<script>ipt>x</scr</script>ipt>",
    "<IMG SRC=`javascript:alert(1)`>",
    "<body onload=alert(1)>w",
    "<portal src=//e>",
]


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_comment(self, data):
        self.found.append(("comment", {}))


def only_harmless(text):
    for tag, attrs in Tags(text).found:
        assert tag in sanitise.TAGS
        assert all(
            name in ("colspan", "rowspan") and value.isdigit() for name, value in attrs.items()
        )


@pytest.mark.parametrize("html", HOSTILE_HTML)
def test_html_that_acts_or_reaches_out_keeps_at_most_its_words(html):
    clean = clean_html(f"<p>before</p>{html}")
    only_harmless(clean)
    assert clean.startswith("<p>before</p>") and "alert" not in re.sub("&lt;.*", "", clean)


@given(
    st.lists(
        st.sampled_from(
            [
                *HOSTILE_HTML,
                "<p>",
                "</p>",
                "<table>",
                "<tr>",
                "<td>",
                "</table>",
                "text",
                "<",
                ">",
                '"',
                "&lt;",
                "<pre>",
                "</",
                "<!--",
                "-->",
                "<svg>",
                "<math>",
                "<select>",
                "]]>",
                "<title>",
            ]
        ),
        max_size=8,
    )
)
@settings(max_examples=50, deadline=None)
def test_no_mixture_of_hostile_pieces_gets_through_and_cleaning_again_changes_nothing(pieces):
    clean = clean_html("".join(pieces))
    only_harmless(clean)
    only_harmless(clean_html(clean))


def test_a_table_of_a_data_frame_stays_a_table():
    html = (
        '<div><style scoped>.dataframe{}</style><table border="1" class="dataframe"><thead><tr style="text-align: right;">'
        '<th></th><th colspan="2">GiB</th></tr></thead><tbody><tr><th>0</th><td>1.5</td><td>a &lt; b</td>'
        "</tr></tbody></table></div>"
    )
    assert clean_html(html) == (
        '<div><table><thead><tr><th></th><th colspan="2">GiB</th></tr></thead><tbody><tr><th>0</th>'
        "<td>1.5</td><td>a &lt; b</td></tr></tbody></table></div>"
    )


def test_html_without_words_is_nothing_and_html_that_is_too_long_is_refused():
    assert clean_html("<div><script>alert(1)</script><img src=x></div>") == ""
    with pytest.raises(ValueError, match="HTML of 60004 bytes; shown are at most 60000"):
        clean_html("<b>" + "x" * (sanitise.HTML_LIMIT_BYTES + 1))


def svg(inside, attributes='width="40pt" height="30pt"'):
    return f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {attributes}>{inside}</svg>'


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        "<g onload='alert(1)'/>",
        "<foreignObject><b>x</b></foreignObject>",
        "<image xlink:href='//e/x.png'/>",
        "<use xlink:href='//e/x.svg#a'/>",
        "<a xlink:href='javascript:alert(1)'><text>x</text></a>",
        "<style>@import url(//e)</style>",
        "<rect style='fill:url(//e)'/>",
        "<rect fill='url(https://e.org/#a)'/>",
        "<animate attributeName='href' to='javascript:alert(1)'/>",
        "<set attributeName='onload' to='alert(1)'/>",
        "<iframe src='//e'/>",
        "<rect style='fill:u\\72l(//e)'/>",
        "<handler>x</handler>",
    ],
)
def test_an_svg_keeps_what_draws_and_nothing_that_acts_or_reaches_out(inside):
    clean = clean_svg(svg(f"<path d='M0 0'/>{inside}"))
    assert clean is not None and clean[1:] == (40, 30)
    words = clean[0].replace(sanitise.SVG, "")
    assert "path" in words and not re.search(
        r"alert|//|script|https?:|@import|foreignObject|animate|onload|iframe|set ", words
    )


def test_references_inside_an_svg_stay():
    clean = clean_svg(
        svg(
            "<defs><path id='m1' d='M0 0'/></defs><use xlink:href='#m1' x='1' clip-path='url(#c)'/>"
        )
    )
    assert 'href="#m1"' in clean[0] and "url(#c)" in clean[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<svg",
        "<html/>",
        svg(""),
        svg("<path/>", ""),
        svg("<path/>", 'width="9e99" height="1"'),
        "<b/>",
        '<!DOCTYPE svg [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>' + svg("<text>&c;</text>"),
        '<!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + svg("<text>&x;</text>"),
        "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'>"
        + "<g>" * 3000
        + "</g>" * 3000
        + "<script/></svg>",
    ],
)
def test_what_is_no_svg_that_can_be_trusted_is_none_or_holds_nothing_of_it(text):
    clean = clean_svg(text)
    assert clean is None or ("passwd" not in clean[0] and "script" not in clean[0])


def test_a_figure_of_matplotlib_is_still_drawn():
    import io

    from matplotlib.figure import Figure

    figure, out = Figure(figsize=(2, 1)), io.StringIO()
    figure.subplots().plot([1, 2], [3, 4])
    figure.savefig(out, format="svg")
    clean = clean_svg(out.getvalue())
    assert clean is not None and clean[0].count("<path") >= out.getvalue().count("<path") * 0.9


@given(st.text(st.sampled_from("ab \n,"), max_size=900), st.booleans())
@settings(max_examples=50)
def test_text_is_cut_to_its_limit_and_says_how_many_bytes_are_shown_of_how_many(text, end):
    kept = cut_text(text, end, limit=400)
    if len(text) <= 400:
        assert kept == text
    else:
        note = re.search(r"\[(\d+) characters left out; .*: (\d+) of (\d+) bytes are shown]", kept)
        assert (
            int(note[3]) == len(text)
            and int(note[1]) + int(note[2]) == len(text)
            and len(kept) <= 400
        )
        assert cut_text(kept, end, limit=400) == kept


def test_text_is_cut_between_lines_so_that_no_half_of_a_name_is_left():
    lines = [f"host name-{i:04d}.example.org" for i in range(60)]
    for end in (False, True):
        kept = [
            line
            for line in cut_text("\n".join(lines), end, limit=700).split("\n")
            if not line.startswith("[")
        ]
        assert kept and set(kept) <= set(lines)


def test_a_giant_notebook_is_cut_to_what_a_page_shows():
    outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="line\n" * 4_000_000),
        nbformat.v4.new_output(
            "display_data", data={"text/html": "<b>" * 100_000, "text/plain": "twin"}
        ),
        nbformat.v4.new_output(
            "display_data", data={"application/json": ["b" * 10**5], "image/png": "A" * 4_000_000}
        ),
        nbformat.v4.new_output(
            "error", ename="E", evalue="x", traceback=["frame\n" * 100_000, "E: the end"]
        ),
    ]
    cell = nbformat.v4.new_code_cell("x", outputs=outputs)
    nb = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {"state": "x" * 10**6}})
    cut_notebook(nb)
    assert len(nbformat.writes(nb)) < 60_000
    shown = nb.cells[0].outputs
    assert "of 20000000 bytes are shown" in shown[0].text
    assert "twin\n[text/html is not shown here: 300000 bytes]" in shown[1].data["text/plain"]
    assert "image/png is not shown here: 4000000 bytes" in shown[2].data["text/plain"]
    assert (
        shown[3].traceback[0].endswith("E: the end") and "of 600011 bytes" in shown[3].traceback[0]
    )


def test_a_notebook_for_a_kernel_that_is_not_here_is_read_and_the_kernel_is_named():
    nb, wrong = read_notebook(FOLDER / "was_written_for_another_kernel.ipynb")
    assert (
        wrong == ["kernel 'ir' is not installed here; shown is what was saved"]
        and nb.cells[1].outputs[0].text == "[1] 3\n"
    )


def test_a_broken_notebook_keeps_its_whole_cells_and_names_the_others():
    nb, wrong = read_notebook(FOLDER / "has_broken_cells.ipynb")
    assert wrong[0].startswith("broken notebook: ") and wrong[1:3] == [
        "cell 1 cannot be read (NotebookValidationError)",
        "cell 2 cannot be read (TypeError)",
    ]
    assert (
        nb.cells[0].source == "# What is whole stays"
        and nb.cells[3].outputs[0].text == "whole\n"
        and len(nb.cells) == 4
    )
    nbformat.validate(nb)


@pytest.mark.parametrize("torn", ["", '{"cells": [', "[]", "{}", '{"cells": 3}', "[" * 100_000])
def test_what_is_no_notebook_at_all_is_refused_in_one_line(tmp_path, torn):
    (tmp_path / "torn.ipynb").write_text(torn)
    with pytest.raises(
        ValueError, match=r"torn\.ipynb: no (JSON|cells).*; expected a notebook"
    ) as raised:
        read_notebook(tmp_path / "torn.ipynb")
    assert "\n" not in str(raised.value)


KEYS = st.sampled_from(
    ["cell_type", "source", "outputs", "metadata", "data", "text", "output_type"]
)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | (st.dictionaries(KEYS, inner, max_size=4)),
        max_leaves=12,
    )
)
@settings(max_examples=50, deadline=None)
def test_no_cell_however_odd_costs_the_others(tmp_path_factory, odd):
    path = tmp_path_factory.getbasetemp() / "odd.ipynb"
    whole = {"cell_type": "markdown", "metadata": {}, "source": ["whole"], "id": "a"}
    path.write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [odd, whole]})
    )
    nb, _ = read_notebook(path)
    cut_notebook(nb)
    assert nb.cells[-1].source == "whole" and len(nb.cells) == 2

"""Pieces of a page, from one set of templates: a verdict, and an executed notebook with only
outputs that cannot act.

Rendered are text, Markdown, our verdicts, PNG pictures, and HTML and SVG as
helpers.tell.sanitise leaves them. JavaScript, widgets and attachments are named or dropped. Raw
HTML in Markdown is shown as text, a link as its words and address, so the page needs no network
and runs nothing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import jinja2
import mistune
import pygments
from markupsafe import Markup, escape
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from helpers.batch.notebook import INJECTED, PARAMETERS, VERDICT
from helpers.ground import child
from helpers.ground.shapes import Verdict, as_dict, from_json
from helpers.ground.units import plain
from helpers.tell.html_table import breakable
from helpers.tell.prose import LONGEST_LINE, one_line, uncoloured
from helpers.tell.resources import template, words
from helpers.tell.shown import ABOUT

from . import verdict as words_of
from .box import ELSEWHERE
from .sanitise import SHOWN, clean_html, clean_svg, cut_text, not_shown
from .tables import one_source

BANNER_TAG = "papermill-error-cell-tag"
LABELS = {INJECTED: "Parameters of this run", PARAMETERS: "Parameters"}
UNFINISHED = {
    "failed": "This cell failed",
    "pending": "Not run",
    "running": "Running when it ended",
}
SAID_ABOVE = ("Machine", "Against", "Verdict", "Next step")
"""Parts of a notebook, by heading, that the head of a page says for all its notebooks."""
PARTS = {"Provenance": "Checked and fine, and where the facts come from", "Evidence": ""}
_CODE = PythonLexer(stripall=True)
_COLOURED = HtmlFormatter(cssclass="highlight")
_SIZE = re.compile(r"[\d.]+ [KMGT]iB")
NO_ROOM = "left out to keep the page small; it is in notebook.ipynb"
_INFO = re.compile(
    rb"(/(?:Creator|Producer|CreationDate|ModDate)\s*\()((?:[^()\\]|\\.)*)\)", re.DOTALL
)
BROWSERS = "chromium chromium-browser google-chrome-stable google-chrome microsoft-edge".split()
PRINTING = (
    "--headless --disable-gpu --no-first-run --disable-extensions --disable-sync --disable-background-networking "
    "--disable-component-update --disable-dev-shm-usage --no-pdf-header-footer"
).split()
PRINT_S = 60.0


@dataclass
class Room:
    """Bytes left on the page.

    What finds no room is named instead of shown, so a page never grows without end.
    """

    left: int

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


def render(name: str, **values: Any) -> Markup:
    """A template of this folder, filled in."""
    return Markup(_environment().get_template(name).render(**values))


@cache
def _environment() -> jinja2.Environment:
    """The templates of pages.

    Every text is made harmless and escaped, whatever the template forgets.
    """

    def harmless(value: Any) -> Any:
        words = isinstance(value, str) and not isinstance(value, Markup)
        return plain(value, keep="\n\t") if words else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=harmless,
    )
    environment.globals.update(asset=asset, glossary=words("glossary"))
    environment.filters["card"] = verdict_html
    environment.filters["hero"] = lambda verdict: verdict_html(verdict, hero=True)
    environment.filters["breakable"] = lambda words: Markup(breakable(plain(words)))
    environment.filters["source"] = lambda reading: Markup(breakable(one_source([reading])))
    environment.filters["shown"] = lambda reading: reading.show()
    return environment


@cache
def asset(*names: str) -> tuple[Markup, str]:
    """The style or the script of a page, and the hash by which the page's policy allows it and
    nothing else.
    """
    text = template(*names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"


def verdict_html(verdict: Verdict, hero: bool = False) -> Markup:
    """The verdict as a box of the page; ``hero`` gives it the heading."""
    strength = 3 - list(words_of.CONFIDENCE_WORDS).index(verdict.confidence)
    return render(
        "verdict.html.j2",
        verdict=verdict,
        hero=hero,
        words=words_of,
        strength=0 if verdict.cause == "cannot-tell" else strength,
    )


def notebook_html(
    notebook: Any,
    room: Room,
    last_words: str = "",
    failing_cell: int | None = None,
    known: set[str] | None = None,
) -> Markup:
    """The notebook as folded sections, without a page around them.

    ``known`` is what the page around it shows already (digests of outputs, and what is added
    here): it is not shown again, and neither are code that ran well, panels and the parts that
    the head of that page holds. None shows all of it.
    """
    mark = len(known or ())
    pieces = cells(notebook, room, last_words, failing_cell)
    return render("folds.html.j2", folds=folds(pieces, known), mark=mark)


@dataclass
class Fold:
    """A section of a page: one line, under it the outputs of some cells; ``code`` is shown of
    cells that need it.
    """

    title: str = ""
    prose: Markup = Markup("")
    outputs: list[dict[str, Any]] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)

    @property
    def state(self) -> str:
        """What became of it where it did not run to its end."""
        return next((cell["state"] for cell in self.cells if cell["state"]), "")

    @property
    def open(self) -> bool:
        """Whether it is shown at once: somebody has to look at it."""
        ended = (UNFINISHED["failed"], UNFINISHED["running"])
        return any(cell["state"] in ended or cell["last_words"] for cell in self.cells)

    @property
    def views(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Its outputs, those of a figure and of its twin in words apart: a reader sees one of
        the two.
        """
        pictures = [out for out in self.outputs if "picture" in out]
        rest = [out for out in self.outputs if "picture" not in out]
        return (
            [("Figure", pictures), ("Table", rest)] if pictures and rest else [("", self.outputs)]
        )

    @property
    def says(self) -> str:
        """What it comes to, in a line: what the first of its outputs says of itself, else the
        words that it begins with.
        """
        return next(filter(None, map(_says, self.outputs)), "")


def folds(pieces: list[dict[str, Any]], known: set[str] | None) -> list[Fold]:
    """The cells under the lines that go before them: see ``notebook_html``."""
    listed = []
    now = Fold()
    part = ""
    passed = False
    for piece in pieces:
        if "prose" in piece:
            own = piece["heading"] if known is None else ""
            if now.outputs or now.cells or own or passed:  # by a cell that had nothing to show
                listed.append(now)
                now = Fold()
            passed = False
            part = piece["heading"] or part
            name = PARTS.get(piece["heading"], piece["heading"])
            now.prose += piece["whole"] if now.title or own else piece["prose"]
            now.title = now.title or own or piece["lead"] or name
            continue
        shown = piece["code"] if known is None else ""
        passed = True
        wanted = shown or piece["state"] or piece["last_words"]
        outputs = piece["outputs"]
        if known is not None and not piece["state"]:
            new = (out for out in outputs if not out["again"] and _is_new(out, known))
            outputs = [] if part in SAID_ABOVE else list(new)
            if piece["outputs"] and not outputs and not now.outputs:
                now = Fold()
        if listed and not wanted and not now.outputs and _twins(listed[-1].outputs, outputs):
            listed[-1].outputs += outputs
            now = Fold()
            continue
        if outputs or wanted:
            now.title = now.title or piece["label"]
        now.outputs += outputs
        now.cells += [piece] * bool(wanted)
    listed.append(now)
    return [one for one in listed if one.outputs or one.cells or (known is None and one.title)]


def _twins(figures: list[dict[str, Any]], tables: list[dict[str, Any]]) -> bool:
    """Whether most sizes of tables stand in the words of the figure before them, and most of
    those in the tables.
    """
    said = {size for out in figures for size in _SIZE.findall(out.get("alt", ""))}
    rows = _rows(tables)
    sizes = set(_SIZE.findall("\n".join(rows)))
    bare = len(rows) > 1 and all("picture" in out for out in figures)
    return bare and len(sizes & said) * 2 > max(len(sizes), len(said))


def _says(output: dict[str, Any]) -> str:
    """What an output comes to, in a line."""
    if "html" in output:  # a verdict has a headline
        return ""
    first = re.sub("<[^>]*>", " ", next(iter(_rows([output])), "").replace("</td>", " "))
    lines = output.get("text", "").strip().splitlines()
    line = lines[-1 if output.get("kind") == "error" else 0] if lines else ""
    said = output["says"] or output.get("alt") or first or line
    return one_line(unescape(said))


def _rows(outputs: Iterable[dict[str, Any]]) -> list[str]:
    """The rows of the tables among outputs, without their headings."""
    made = "".join(out.get("scroll", "") for out in outputs)
    bodies = re.findall("<tbody>(.*?)</tbody>", made, re.DOTALL)
    return [row for body in bodies for row in body.split("<tr>")[1:] if "colspan" not in row]


def _is_new(output: dict[str, Any], known: set[str]) -> bool:
    """Whether the page shows nothing that is equal to it; then it does from now on."""
    digest = hashlib.sha256(repr(sorted(output.items())).encode("utf-8", "replace")).hexdigest()
    new = digest not in known
    known.add(digest)
    return new


def cells(
    notebook: Any, room: Room, last_words: str = "", failing_cell: int | None = None
) -> list[dict[str, Any]]:
    """What the page shows of each cell: prose alone, or code with its label, its state in words
    and its outputs.

    ``last_words`` is what the kernel wrote to fd 2; it stands beneath the failed cell, or at
    the end where none failed. ``failing_cell`` counts the cells of the notebook as it was
    written, as a run's record does.
    """
    prose = Prose()
    number = -1
    pieces: list[dict[str, Any]] = []
    failed: dict[str, Any] | None = None
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if BANNER_TAG in tags:
            continue
        number += INJECTED not in tags
        if cell.cell_type == "markdown":
            pieces.append(_headed(_clipped(uncoloured(cell.source), room), prose))
        elif cell.cell_type == "code":
            status = cell.metadata.get("papermill", {}).get("status", "")
            one = _code_cell(_clipped(uncoloured(cell.source), room), UNFINISHED.get(status, ""))
            one["label"] = next((LABELS[tag] for tag in LABELS if tag in tags), "Code")
            for out in cell.outputs:
                shown = _output(out, cell.metadata.get("alt"), room, prose)
                about = out.get("metadata", {}).get(ABOUT)
                about = about if isinstance(about, dict) else {}
                said = {"says": str(about.get("says") or ""), "again": about.get("again") is True}
                one["outputs"] += [{**shown, **said}] if shown else []
            pieces.append(one)
            named = failed is None and number == failing_cell and INJECTED not in tags
            if status == "failed" or named:
                failed = one
    words = uncoloured(last_words).strip()
    if words and failed is None:
        failed = _code_cell("", "")
        pieces.append(failed)
    outputs = failed["outputs"] if failed else []
    if failed and not any(words in out["text"] for out in outputs if out.get("kind") == "error"):
        failed["last_words"] = _clipped(words, room, end=True)
    return pieces


def _headed(source: str, prose: Prose) -> dict[str, Any]:
    """A cell of Markdown: its heading, its first sentence as plain words, and the rest as HTML."""
    match = re.match(
        r"\s*(?:#{1,6} +([^\n]*)\s*)?(?:(?![-#|>`*\d])(.*?[.?!](?=\s|$)))?(.*)", source, re.DOTALL
    )
    heading, lead, rest = match.groups(default="") if match else ("", "", source)
    line = re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", " ".join(lead.split()))
    whole = prose.html(lead + rest)
    rest = prose.html(rest) if len(line) <= LONGEST_LINE else whole
    shown = {"prose": rest, "whole": whole, "lead": one_line(line)}
    return {"heading": heading.strip(), **shown}


def _code_cell(source: str, state: str) -> dict[str, Any]:
    coloured = pygments.highlight(source, _CODE, _COLOURED)
    about = {"code": Markup(coloured) if source.strip() else "", "source": source, "state": state}
    return {**about, "label": "After the last cell", "outputs": [], "last_words": ""}


def _output(output: Any, alt: Any, room: Room, prose: Prose) -> dict[str, Any] | None:
    """The output with one kind of data at most: the first we show.

    None where it has none that is safe.
    """
    if output.output_type == "stream":
        kind = "stderr" if output.name == "stderr" else "stdout"
        return _words(_passed_on(uncoloured(output.text)), room, kind)
    if output.output_type == "error":
        trace = "\n".join(output.traceback) or f"{output.ename}: {output.evalue}"
        return _words(uncoloured(trace), room, "error")
    data = output.get("data", {})
    verdict = _verdict(data.get(VERDICT))
    if verdict and room.take(4 * len(json.dumps(as_dict(verdict)))):
        return {"html": verdict_html(verdict)}
    words = _passed_on(uncoloured(_text(data.get("text/plain", ""))))
    own = output.get("metadata", {}).get("image/png", {})
    own = own if isinstance(own, dict) else {}
    alt = alt or ("" if words.startswith("<Figure") else words) or "A figure without a description"
    about = plain(own.get("alt") or alt)
    drawing = clean_svg(_text(data["image/svg+xml"])) if "image/svg+xml" in data else None
    if drawing and room.take(2 * len(drawing[0].encode())):
        encoded = base64.b64encode(drawing[0].encode()).decode()
        size = {"width": drawing[1], "height": drawing[2]}
        return {"picture": f"image/svg+xml;base64,{encoded}", "alt": about, **size}
    if "image/png" in data:
        return _picture(_text(data["image/png"]), about, own.get("width"), room)
    html = _html(_passed_on(_text(data["text/html"]))) if "text/html" in data else ""
    if html and room.take(2 * len(html.encode())):
        return {"scroll": Markup(html)}
    if "text/markdown" in data:
        return {"prose": prose.html(_clipped(uncoloured(_text(data["text/markdown"])), room))}
    if not words.strip():
        words = "\n".join(not_shown(plain(kind), data[kind]) for kind in data if kind not in SHOWN)
    return _words(words, room) if words else None


def _words(text: str, room: Room, kind: str = "stdout") -> dict[str, Any]:
    return {"kind": kind, "text": _clipped(text, room, end=kind == "error")}


def _passed_on(text: str) -> str:
    """A text without the line that only who runs the notebook needs."""
    return re.sub(rf"{ELSEWHERE}.*\n", "", text)


def _html(text: str) -> str:
    try:
        return plain(clean_html(text), keep="\n\t")
    except ValueError:  # too long: its text twin is shown
        return ""


def _picture(encoded: str, alt: str, wide: Any, room: Room) -> dict[str, Any]:
    """A PNG with its words and its size on the page; the words alone where it is no PNG or
    finds no room.
    """
    encoded = "".join(encoded.split())
    size = png_size(encoded)
    if size is None:
        return _words(f"A picture that is not a PNG is left out. {alt}", room)
    if not room.take(len(encoded) + len(alt) + 200):
        return {"kind": "stdout", "text": f"This picture is {NO_ROOM}. {alt}"}
    scale = wide / size[0] if isinstance(wide, int) and 0 < wide <= size[0] else 1
    width, height = (round(length * scale) for length in size)
    return {"picture": f"image/png;base64,{encoded}", "alt": alt, "width": width, "height": height}


def png_size(encoded: str) -> tuple[int, int] | None:
    """Width and height in pixels of a base64 PNG, None where it is anything else."""
    from PIL import Image  # most pictures of a page are SVG, and it takes a while to load

    try:
        with Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)), "r", ["PNG"]) as one:
            return one.size
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError):
        return None


def _verdict(data: Any) -> Verdict | None:
    try:
        return from_json(Verdict, data)
    except ValueError:
        return None


def _text(data: Any) -> str:
    return "".join(map(str, data)) if isinstance(data, list) else str(data)


def _clipped(text: str, room: Room, end: bool = False) -> str:
    """Text as ``cut_text`` leaves it, where the page has room for it."""
    short = cut_text(text.strip("\n"), end)
    size = 2 * len(short.encode("utf-8", "replace")) + 300 * bool(short)
    return short if room.take(size) else f"[{NO_ROOM}]"


class Prose(mistune.HTMLRenderer):
    """Markdown to HTML that cannot act: raw HTML stays text, links and pictures become words,
    headings start at level 3.

    One object renders one notebook in order, because a heading may go only one level deeper
    than the one before.
    """

    def __init__(self) -> None:
        super().__init__(escape=True)
        self._level = 2
        self._markdown = mistune.create_markdown(renderer=self, plugins=["table", "strikethrough"])

    def html(self, source: str) -> Markup:
        return Markup(str(self._markdown(source)))

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        self._level = min(level + 2, self._level + 1, 6)
        return f"<h{self._level}>{text}</h{self._level}>\n"

    def link(self, text: str, url: str, title: str | None = None) -> str:
        address = str(escape(url))
        return text if address in ("", text) else f'{text} <span class="address">({address})</span>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        words = escape(re.sub("<[^>]*>", "", text)) if text else escape(url)
        return f'<span class="address">[picture: {words}]</span>'

    def block_code(self, code: str, info: str | None = None) -> str:
        return f'<div class="scroll" tabindex="0"><pre><code>{escape(code)}</code></pre></div>\n'

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0"><table>\n{text}</table></div>\n'

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        tag = "th" if head else "td"
        kind = ' class="number"' if align == "right" else ""
        return f"<{tag}{kind}>{text}</{tag}>\n"


def browser() -> str:
    """The path of a Chromium, or nothing."""
    return next(filter(None, map(shutil.which, BROWSERS)), "")


def write_pdf(html: Path, out: Path, limit_s: float = PRINT_S) -> str:
    """Print a page to ``out`` through a Chromium of this machine, with a profile that is thrown
    away and no network.

    Returns why that was not possible, or nothing where the file is there.
    """
    out.unlink(missing_ok=True)  # an older one may show what the page no longer does
    program = browser()
    if not program:
        return f"no Chromium here; looked for {', '.join(BROWSERS)}"
    with tempfile.TemporaryDirectory(prefix="casebook-pdf-", ignore_cleanup_errors=True) as folder:
        made = Path(folder, "page.pdf")
        # Chromium's sandbox refuses root; the page holds no script.
        command = [program, *PRINTING, *(["--no-sandbox"] if os.getuid() == 0 else [])]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}/profile"]
        command += [f"--print-to-pdf={made}", html.resolve().as_uri()]
        env = child.environment(own=False, more={"HOME": folder, "TMPDIR": folder})
        ended = child.watch(command, limit_s, env=env)
        if ended.how != "exited" or not made.is_file() or made.read_bytes()[:5] != b"%PDF-":
            words = (ended.last_words.strip().splitlines() or ["no words"])[-1][:200]
            return f"{Path(program).name} {ended.fate}: {words}"
        # Its own title is the page's; the time and the browser that it was printed with are
        # nobody's business.
        out.write_bytes(_INFO.sub(lambda m: m[1] + b" " * len(m[2]) + b")", made.read_bytes()))
    return ""

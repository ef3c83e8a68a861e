"""Values planted in a notebook and in texts as people leave them there, and which of them a reader can still find.

``python tests/planted.py --seed 1 --out FOLDER`` writes notebook.ipynb, log.txt, issue.md, bundle/*.txt, plants.json;
``python tests/planted.py --plants FOLDER/plants.json PAGE...`` lists the planted values that the pages give away.
What is planted (tests/data/planted_kinds.json), how it is written (planted_ways.json) and lines that say nothing of
anybody (planted_clean.json) are data. Every value is drawn at random: none belongs to anybody.

A kind's ``make`` is a pattern: ``[a-z]{4}`` characters, ``(a|b)`` one of these, ``<syl>`` a word of MAKERS, ``{{..}}``
the parts that give somebody away where the rest (the address of a vendor, say) does not.
A way's ``text`` holds ``<<v>>`` the value, ``<<n>>``, ``<<l>>``, ``<<d>>``, ``<<h>>`` its name as A_B, a_b, a-b, A B, and
``<<e>>`` what the encoders of ``do`` make of ``inner``; ``cut`` pieces of the value are put together with ``join``.
"""

from __future__ import annotations

import argparse
import base64
import codecs
import gzip
import html
import json
import random
import re
import sys
import unicodedata
import urllib.parse
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from data_rows import read_table

LEAST_OF_A_KIND = 6
LEAST_OF_A_WAY = 5
# The share of a secret's characters that is as good as the secret; of what encodes it beside its name, which says nothing.
ENOUGH = 0.5
ENOUGH_ENCODED = 0.8
PLACES = {
    **dict.fromkeys(("py", "magic", "sh"), "cell source"),
    **dict.fromkeys(("log", "issue", "bundle"), "text file"),
    **dict.fromkeys(("markdown", "raw"), "cell of text"),
    **dict.fromkeys(("error", "evalue"), "traceback"),
    **dict.fromkeys(("cellmeta", "outmeta"), "metadata"),
}
MIMES = {
    "text": "text/plain",
    "mdout": "text/markdown",
    "latex": "text/latex",
    "js": "application/javascript",
    "json": "application/json",
    "vega": "application/vnd.vegalite.v5+json",
}
WIDGETS = "application/vnd.jupyter.widget-state+json"
ROW = ("id", "kind", "way", "place", "value")
Plant = dict[str, Any]


def table(name: str) -> list[Any]:
    """The rows of tests/data/planted_NAME.json."""
    return read_table(f"planted_{name}")


def clean_lines() -> list[str]:
    """Lines of GPU logs that say nothing about anybody: redaction must leave them as they are."""
    return list(table("clean"))


HEX = "0123456789abcdef"
TO_URL = {ord("+"): "-", ord("/"): "_", ord("="): None}


def characters(rng: random.Random, these: str, count: int) -> str:
    return "".join(rng.choice(these) for _ in range(count))


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def syllable(rng: random.Random) -> str:
    return rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") + rng.choice(["", "", "n", "r", "l"])


def unique_id(rng: random.Random) -> str:
    return "-".join(characters(rng, HEX, count) for count in (8, 4, 4, 4, 12))


def web_token(rng: random.Random) -> str:
    claims = {"sub": syllable(rng) + syllable(rng), "jti": unique_id(rng)}
    parts = (b'{"alg":"HS256","typ":"JWT"}', json.dumps(claims).encode(), rng.randbytes(32))
    head, body, sign = (ENCODERS["b64url"](one.decode("latin-1")) for one in parts)
    return f"{head}.{{{{{body}.{sign}}}}}"


def neptune(rng: random.Random) -> str:
    told = {"api_address": "https://app.neptune.ai", "api_key": unique_id(rng)}
    whole = base64_of(json.dumps(told).encode())
    return whole[:72] + "{{" + whole[72:] + "}}"


def private_key(rng: random.Random) -> str:
    label = rng.choice(["RSA ", "OPENSSH ", "", "EC "]) + "PRIVATE KEY"
    body = base64_of(rng.randbytes(48 * rng.randint(3, 8) + 17))
    lines = "\n".join("{{" + body[at : at + 64] + "}}" for at in range(0, len(body), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----"


def card_number(rng: random.Random) -> str:
    digits = [4, *(rng.randrange(10) for _ in range(14))]
    doubled = [sum(divmod(2 * one, 10)) if at % 2 == 0 else one for at, one in enumerate(digits)]
    number = "".join(map(str, [*digits, -sum(doubled) % 10]))
    return rng.choice(["", " ", "-"]).join(re.findall("....", number))


def bank_account(rng: random.Random) -> str:
    bank = characters(rng, HEX[:10], 18)
    number = f"DE{98 - int(bank + '131400') % 97:02}{bank}"
    return rng.choice(["", " "]).join(re.findall(".{1,4}", number))


MAKERS = {
    "syl": syllable,
    "Syl": lambda rng: syllable(rng).capitalize(),
    "uuid": unique_id,
    "jwt": web_token,
    "neptune": neptune,
    "pem": private_key,
    "card": card_number,
    "iban": bank_account,
}
PATTERN = re.compile(r"\[([^\]]+)\](?:\{(\d+)\})?|\(([^()]*)\)|<(\w+)>|(.)", re.S)
MARKS = re.compile(r"\{\{|\}\}")


def made(rng: random.Random, pattern: str) -> str:
    """A value of that pattern, its marks ``{{`` and ``}}`` still in it."""
    out = []

    def spelled(match: re.Match[str]) -> str:
        return "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1)))

    for these, count, either, maker, plain in PATTERN.findall(pattern):
        if these:
            out.append(characters(rng, re.sub(r"(\w)-(\w)", spelled, these), int(count or 1)))
        elif maker:
            out.append(MAKERS[maker](rng))
        else:
            out.append(rng.choice(either.split("|")) if either else plain)
    return "".join(out)


def each(form: str) -> Any:
    return lambda text: "".join(form.format(ord(one)) for one in text)


def hex_dump(text: str) -> str:
    rows = []
    for at in range(0, len(text), 16):
        row = text[at : at + 16]
        pairs = re.sub("(....)", r"\1 ", row.encode().hex())
        rows.append(f"{at:08x}: {pairs:<40} {re.sub('[^ -~]', '.', row)}")
    return "\n".join(rows)


ENCODERS = {
    "xesc": each("\\x{:02x}"),
    "uesc": each("\\u{:04x}"),
    "oesc": each("\\{:03o}"),
    "percent": lambda text: re.sub(r"\W", lambda one: f"%{ord(one[0]):02X}", text),
    "entities": each("&#{};"),
    "some_entities": lambda text: re.sub(
        "(.)(.)", lambda one: f"{one[1]}&#x{ord(one[2]):x};", text
    ),
    "hex": each("{:02x}"),
    "hexdump": hex_dump,
    "b64": lambda text: base64_of(text.encode("latin-1")),
    "b64url": lambda text: base64_of(text.encode("latin-1")).translate(TO_URL),
    "utf16": lambda text: text.encode("utf-16-le").decode("latin-1"),
    "gzip64": lambda text: base64_of(gzip.compress(text.encode(), mtime=0)),
    "lines76": lambda text: "\n".join(re.findall(".{1,76}", text)),
    "quoted": lambda text: "=\n".join(re.findall("(?s).{1,60}", text.replace("=", "=3D"))),
    "fullwidth": lambda text: re.sub("[!-~]", lambda one: chr(ord(one[0]) + 0xFEE0), text),
    "reverse": lambda text: text[::-1],
    "first30": lambda text: text[:30],
    "jsonesc": lambda text: json.dumps(text)[1:-1],
    "b32": lambda text: base64.b32encode(text.encode()).decode(),
    "b85": lambda text: base64.b85encode(text.encode()).decode(),
    "a85": lambda text: base64.a85encode(text.encode()).decode(),
    "zlib85": lambda text: base64.b85encode(zlib.compress(text.encode())).decode(),
    "hexcolon": lambda text: ":".join(f"{ord(one):02x}" for one in text),
    "hex0x": lambda text: ", ".join(f"0x{ord(one):02x}" for one in text),
    "bytelist": lambda text: ", ".join(str(ord(one)) for one in text),
    "charlist": lambda text: ", ".join(map(repr, text)),
    "chrs": lambda text: " + ".join(f"chr({ord(one)})" for one in text),
    "spaced": " ".join,
    "nesc": lambda text: "".join(f"\\N{{{unicodedata.name(one)}}}" for one in text),
    "Uesc": each("\\U{:08x}"),
    "cssesc": each("\\{:x} "),
    "overstrike": lambda text: "".join(f"{one}\b{one}" for one in text),
    "rainbow": lambda text: "".join(f"\x1b[3{at % 8}m{one}" for at, one in enumerate(text)),
    "zerowidth": "\u200b".join,
    "mathletters": lambda text: re.sub("[a-z]", lambda one: chr(ord(one[0]) + 0x1D3B9), text),
    "utf7": lambda text: "".join(
        one if one.isalnum() else f"+{base64_of(one.encode('utf-16-be')).rstrip('=')}-"
        for one in text
    ),
    "nulesc": lambda text: "".join(f"{one}\\x00" for one in text),
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "prefixed": lambda text: re.sub("(?m)^", "2026-03-01 10:00:00,123 [rank0] INFO | ", text),
}


def filled(text: str, words: dict[str, str]) -> str:
    """The template with its words in; a value of several lines stands as far in as its first line does."""

    def word(match: re.Match[str]) -> str:
        before = match.string[: match.start()].rsplit("\n", 1)[-1]
        return words[match[1]].replace("\n", "\n" + before if before.isspace() else "\n")

    return re.sub(r"<<(\w)>>", word, text)


def planted(rng: random.Random, kind: dict[str, Any], way: dict[str, Any]) -> Plant:
    """One value written that way, with every form under which it can be found, and the text that holds it."""
    marked = made(rng, rng.choice(kind["make"]))
    value = MARKS.sub("", marked)
    parts = re.findall(r"\{\{(.+?)\}\}", marked) or [value]
    forms: list[dict[str, Any]] = [{"how": "plain", "text": one} for one in parts]
    low = rng.choice(kind["names"]).lower()
    words = {"v": value, "n": low.upper(), "l": low, "d": low.replace("_", "-")}
    words["h"] = low.replace("_", " ").title()
    encoded = filled(way.get("inner", "<<v>>"), words)
    done = []
    for step in way.get("do", []):
        encoded = ENCODERS[step](encoded)
        done.append(step)
        if step == "hexdump":
            pieces = [row[10:50].strip() for row in encoded.splitlines()]
            forms.append({"how": step, "pieces": pieces})
        elif step != "utf16":
            forms.append({"how": " + ".join(done), "text": encoded})
    words["e"] = encoded
    if json.dumps(encoded)[1:-1] != encoded:
        forms.append({"how": "in JSON", "text": json.dumps(encoded)[1:-1]})
    if "cut" in way:
        size = -(-len(value) // way["cut"])
        pieces = [value[at : at + size] for at in range(0, len(value), size)]
        forms.append({"how": "pieces", "pieces": pieces})
        words["v"] = way["join"].join(pieces)
    spot = rng.choice(way["place"])
    if spot in ("json", "vega", "metadata", "cellmeta", "outmeta", "widget"):
        words = {key: json.dumps(one)[1:-1] for key, one in words.items()}
    snippet = filled(rng.choice(way["text"]), words)
    known = {"kind": kind["kind"], "secret": kind["family"] != "identity", "way": way["way"]}
    where = {"place": PLACES.get(spot, spot), "spot": spot}
    return {**known, **where, "value": value, "forms": forms, "snippet": snippet}


@cache
def fits(make: str, pieces: int, first: bool) -> bool:
    """Whether values of that pattern are long enough to be cut, and say something in their first characters."""
    some = [made(random.Random(at), make) for at in range(8)]
    shortest = min(len(MARKS.sub("", one)) for one in some)
    return shortest >= 8 * pieces and not (first and some[0].find("{{") > 9)


def goes(kind: dict[str, Any], way: dict[str, Any]) -> bool:
    """Whether people write that kind that way."""
    first = "first30" in way.get("do", ())
    wanted = {kind["family"], kind["kind"]} & set(way["takes"])
    return bool(wanted) and all(fits(one, way.get("cut", 0), first) for one in kind["make"])


def plants_of(seed: int) -> list[Plant]:
    """The plants of that seed, each kind and each way often enough, every value once."""
    rng = random.Random(seed)
    kinds = table("kinds")
    ways = table("ways")
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    uses: Counter[str] = Counter()
    for way in rng.sample(ways, len(ways)):
        fit = [kind for kind in kinds if goes(kind, way)]
        for _ in range(LEAST_OF_A_WAY):
            rarest = min(fit, key=lambda kind: (uses[kind["kind"]], rng.random()))
            uses[rarest["kind"]] += 1
            pairs.append((rarest, way))
    for kind in kinds:
        fit = [way for way in ways if goes(kind, way)]
        missing = max(0, LEAST_OF_A_KIND - uses[kind["kind"]])
        pairs += [(kind, rng.choice(fit)) for _ in range(missing)]
    rng.shuffle(pairs)
    plants: dict[str, Plant] = {}
    for kind, way in pairs:
        plant = planted(rng, kind, way)
        while plant["value"] in plants:
            plant = planted(rng, kind, way)
        plants[plant["value"]] = {"id": len(plants), **plant}
    return list(plants.values())


# --- the notebook and the texts


def grown(seed: int) -> tuple[dict[str, Any], dict[str, str], list[Plant]]:
    """The notebook, the texts by file name, and the plants with the file and the cell where each stands."""
    rng = random.Random(f"places of {seed}")
    plants = plants_of(seed)
    cells: list[dict[str, Any]] = []
    state: dict[str, Any] = {}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    widgets = {WIDGETS: {"version_major": 2, "version_minor": 0, "state": state}}
    about: dict[str, Any] = {"kernelspec": kernel, "widgets": widgets}

    def some(spot: str, size: int) -> list[list[Plant]]:
        these = [plant for plant in plants if plant["spot"] == spot]
        return [these[at : at + size] for at in range(0, len(these), size)]

    def among(these: list[Plant]) -> str:
        lines = [line for one in these for line in (rng.choice(table("clean")), one["snippet"])]
        return "\n".join(lines) + "\n"

    def cell(these: list[Plant], source: str, output: Any = None, metadata: Any = None) -> None:
        if output and "output_type" not in output:
            output = {"output_type": "display_data", "metadata": {}, "data": output}
        for plant in these:
            plant.update(file="notebook.ipynb", cell=len(cells))
        told = {"cell_type": "code", "id": f"cell-{len(cells)}", "execution_count": len(cells) + 1}
        outputs = [output] if output else []
        cells.append({**told, "metadata": metadata or {}, "source": source, "outputs": outputs})

    for spot, head in (("py", "import os\n"), ("magic", ""), ("sh", "%%bash\n")):
        for these in some(spot, 5):
            cell(these, head + "\n".join(one["snippet"] for one in these))
    for spot in ("stdout", "stderr"):
        for these in some(spot, 6):
            cell(these, "run()", {"output_type": "stream", "name": spot, "text": among(these)})
    for these in some("error", 1):
        told = {"output_type": "error", "ename": "OutOfMemoryError", "evalue": "HIP out of memory."}
        cell(these, "train()", {**told, "traceback": these[0]["snippet"].split("\n")})
    for these in some("html", 3):
        cell(these, "table", {"text/html": "\n<hr>".join(one["snippet"] for one in these)})
    for these in some("svg", 3):
        inside = "\n".join(one["snippet"] for one in these)
        picture = f'<svg xmlns="http://www.w3.org/2000/svg" width="400">{inside}</svg>'
        cell(these, "figure", {"image/svg+xml": picture})
    for spot, mime in MIMES.items():
        for these in some(spot, 1):
            words = these[0]["snippet"]
            cell(these, "result", {mime: json.loads(words) if mime.endswith("json") else words})
    for these in some("outmeta", 1):
        told = {"output_type": "display_data", "metadata": json.loads(these[0]["snippet"])}
        cell(these, "result", {**told, "data": {"text/plain": "1"}})
    for these in some("evalue", 1):
        told = {"output_type": "error", "ename": "ValueError", "evalue": these[0]["snippet"]}
        cell(these, "train()", {**told, "traceback": []})
    for spot in ("markdown", "raw", "attachment"):
        for these in some(spot, 1):
            words = these[0]["snippet"]
            attached = spot == "attachment"
            these[0].update(file="notebook.ipynb", cell=len(cells))
            more = {"attachments": {"notes.txt": {"text/plain": words}}} if attached else {}
            kind = "raw" if spot == "raw" else "markdown"
            told = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
            cells.append({**told, "source": "see" if attached else words, **more})
    for these in some("cellmeta", 1):
        cell(these, "steps = 100", metadata=json.loads(these[0]["snippet"]))
    for (plant,) in some("metadata", 1):
        about[f"run_{plant['id']}"] = json.loads(plant["snippet"])
    for (plant,) in some("widget", 1):
        model = {"model_module": "@jupyter-widgets/controls", "model_module_version": "2.0.0"}
        state[characters(rng, HEX, 32)] = {**model, **json.loads(plant["snippet"])}
    texts = {}
    parts = {f"bundle/part_{at}.txt": these for at, these in enumerate(some("bundle", 40), 1)}
    wholes = {"log.txt": some("log", len(plants))[0], "issue.md": some("issue", len(plants))[0]}
    for file, these in {**wholes, **parts}.items():
        texts[file] = among(these)
        for plant in these:
            plant["file"] = file
    for plant in plants:
        plant.setdefault("file", "notebook.ipynb")
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": cells}, texts, plants


def rendered(notebook: dict[str, Any]) -> str:
    """The notebook as a page with nothing left out: what a page shows where nothing was redacted."""
    said = [f"<script type='application/json'>{json.dumps(notebook['metadata'])}</script>"]
    for cell in notebook["cells"]:
        said += [html.escape(cell["source"]), json.dumps(cell["metadata"])]
        said.append(html.escape(json.dumps(cell.get("attachments", {}), ensure_ascii=False)))
        for out in cell.get("outputs", []):
            said.append(html.escape(out.get("text") or "\n".join(out.get("traceback", []))))
            said += [html.escape(out.get("evalue", "")), json.dumps(out.get("metadata", {}))]
            for mime, data in out.get("data", {}).items():
                said.append(html.escape(json.dumps(data)) if mime.endswith("json") else data)
    return "<!doctype html><html><body><pre>" + "\n".join(said) + "</pre></body></html>"


# --- what survives

CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
TAGS = re.compile(r"<!--|-->|<[^<>]*>")
BETWEEN = re.compile("[\\s\"'`\\\\+\u2500-\u257f\u200b-\u200f\u00ad\u2060\ufeff]")
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([0-7]{3})|([nrt\"/\\]))")


def unescaped(match: re.Match[str]) -> str:
    if match[4]:
        return {"n": "\n", "r": "\r", "t": "\t"}.get(match[4], match[4])
    return chr(int(match[3], 8) if match[3] else int(match[1] or match[2], 16))


def squeezed(text: str) -> str:
    """The text without what may stand between the pieces of a value: blanks, quotes, plus signs, frames."""
    return BETWEEN.sub("", text)


def views_of(page: str) -> list[str]:
    """The page as its source, as what it shows, and as what its escapes stand for."""
    seen = html.unescape(page)
    text = html.unescape(TAGS.sub("", page))
    views = [
        CONTROLS.sub("", one)
        for one in (seen, ESCAPE.sub(unescaped, seen), text, ESCAPE.sub(unescaped, text))
    ]
    return [page, seen, *views, urllib.parse.unquote(text), unicodedata.normalize("NFKC", text)]


def run_found(form: str, page: str, grams: set[str], least: int) -> bool:
    """Whether at least that many characters of the form stand in succession on the page."""
    step = max(5, least // 2)
    for at in range(0, len(form) - step + 1, step):
        part = form[at : at + step]
        found = page.find(part) if part[:5] in grams else -1
        while found >= 0:
            start = at
            end = at + step
            while (
                start > 0 and form[start - 1] == page[found - at + start - 1 : found - at + start]
            ):
                start -= 1
            while end < len(form) and form[end] == page[found - at + end : found - at + end + 1]:
                end += 1
            if end - start >= least:
                return True
            found = page.find(part, found + 1)
    return False


def form_found(form: dict[str, Any], secret: bool, views: list[str], grams: set[str]) -> bool:
    """Whether the form, or enough of a secret's form, stands in the views; the last of them has no blanks."""
    enough = ENOUGH if form["how"] in ("plain", "pieces") else ENOUGH_ENCODED
    if "pieces" in form:
        pieces = [squeezed(one) for one in form["pieces"]]
        there = [one for one in pieces if len(one) > 5 and one[:5] in grams and one in views[-1]]
        return len("".join(there)) > enough * len("".join(pieces))
    text = squeezed(form["text"])
    if len(text) < 12 and not secret:
        alone = re.compile(f"(?<![A-Za-z0-9]){re.escape(form['text'])}(?![A-Za-z0-9])")
        return any(form["text"] in view and alone.search(view) for view in views[:-1])
    least = int(enough * len(text)) if secret and len(text) >= 20 else len(text)
    return run_found(text, views[-1], grams, least)


def survivors(page_text: str, plants: list[Plant]) -> list[tuple[Plant, str]]:
    """The plants that a reader of the page can still make out, each with the form that was found first.

    Tags, entities, escapes, colours, line ends and frames within a value hide nothing; nor is a secret gone by half.
    """
    views = list(dict.fromkeys(views_of(page_text)))
    views.append("\0".join(dict.fromkeys(map(squeezed, views))))
    grams = {views[-1][at : at + 5] for at in range(len(views[-1]))}
    found = []
    for plant in plants:
        there = (one for one in plant["forms"] if form_found(one, plant["secret"], views, grams))
        if form := next(there, None):
            found.append((plant, form["how"]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for the notebook, the texts, plants.json")
    parser.add_argument("--plants", type=Path, help="plants.json to look for in the pages")
    parser.add_argument("pages", nargs="*", type=Path, help="pages to look in")
    asked = parser.parse_args()
    if asked.out:
        notebook, texts, plants = grown(asked.seed)
        wholes = {"notebook.ipynb": notebook, "plants.json": plants}
        files = {**texts, **{name: json.dumps(one, indent=1) for name, one in wholes.items()}}
        for name, text in files.items():
            (asked.out / name).parent.mkdir(parents=True, exist_ok=True)
            (asked.out / name).write_bytes(text.encode())
        print(f"{len(plants)} values planted in {len(files) - 1} files below {asked.out}")
    elif asked.plants and asked.pages:
        plants = json.loads(asked.plants.read_text(encoding="utf-8"))
        pages = [page.read_bytes().decode("utf-8", "replace") for page in asked.pages]
        found = survivors("\n".join(pages), plants)
        for plant, how in found:
            print("\t".join(str(plant[key]) for key in ROW), how, sep="\t")
        print(f"{len(found)} of {len(plants)} planted values survive")
    else:
        parser.error("name --out FOLDER, or --plants FILE and the pages to look in")
    return 0


if __name__ == "__main__":
    sys.exit(main())

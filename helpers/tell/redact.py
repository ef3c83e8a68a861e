"""Bundles and folders of runs without what should have stayed home: who, where, which card,
which key.

Values known from the box (redact_box) and values that detectors find (redact.yaml) are replaced
by pseudonyms that stay the same over text, notebook and bundle as long as one ``Known`` is used
for all. Numbers that matter stay: PCI addresses, versions, sizes, digests, times. Words drawn
in a picture's pixels are not read. ``second_scan`` lets another program look again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from helpers.look.archive import BundleError, check_target, read_files, write_files
from helpers.look.guard import spread

from . import redact_known as facts
from .redact_box import learn_bundle_files
from .redact_known import TABLE, WRITING, Known
from .redact_patterns import View, detected, parts, views
from .redact_text import BINARY, Replaced, learn, learn_data, redact_data, redact_notebook, replace

_CONTROL = re.compile(r"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
_ALLOWED = [re.compile(row["pattern"]) for row in TABLE["allowed"]]
_WORTH_A_LOOK = TABLE["worth_a_look"].split()
_NAMES = {kind: words.split() for kind, words in TABLE["names_of_scanners"].items()}
_TAGS = re.compile(r"<[^<>]*>|data:[\w/+.-]+;base64,[\w+/=\s]*")
_BLANK = re.compile(".")
_RUN = re.compile(r"[\w+/=.~-]{20,}")


class Find(str):
    """What a second scan found: its place and its kind.

    The value, as written and as read, is for who marks it, never printed.
    """

    value = read = ""


class RedactError(BundleError):
    """Members that cannot be read for sure. One line that names them."""


def redact_bundle(
    path: str | Path,
    out: str | Path,
    known: Known,
    allow_binary: bool = False,
    allow_found: bool = False,
    force: bool = False,
) -> Replaced:
    """Write the bundle or folder at ``path`` to ``out`` (folder, .tar.gz) with pseudonyms, and
    say what was replaced.

    Raises RedactError, with nothing written, where a member is binary and no PNG
    (``allow_binary`` lets such members pass as they are), and where the second scan finds
    something in what would be written (``allow_found`` lets it). Raises BundleError as
    open_bundle does, also for links.
    """
    check_target(Path(out), force)
    files, replaced = redact_files(read_files(Path(path)), known, allow_binary)
    finds = second_scan(texts_of(files))
    if finds and isinstance(finds, list) and not allow_found:
        raise RedactError(f"the second scan found {len(finds)} in it: {finds[0]}")
    write_files(files, Path(out), force)
    return replaced


def redact_files(
    files: dict[str, bytes], known: Known, allow_binary: bool = False
) -> tuple[dict[str, bytes], Replaced]:
    """Files by name with pseudonyms in names and contents; a manifest gets the new names, sizes
    and digests.
    """
    learn_bundle_files(files, known)
    contents: list[Any] = []
    for name, raw in files.items():
        text, _ = _text(raw)
        contents += [name, text if (data := _json(name, text)) is None else data]
    met: list[str] = []
    for one in contents:
        learn_data(one, Known(), lambda text, _: met.extend(parts(text)))
    unread = sorted(set(met) - known.read.keys(), key=len, reverse=True)
    ahead = dict(zip(unread, spread(unread, detected, sum(map(len, unread))), strict=True))
    for one in contents:
        learn_data(one, known, partial(learn, ahead=ahead))
    new: dict[str, bytes] = {}
    names = {}
    unsure = []
    replaced = Replaced()
    for name, raw in files.items():
        clean = names[name] = _unused(replace(name, known, replaced, "file names"), new)
        new[clean] = raw
        if name == "manifest.json":
            continue
        try:
            new[clean] = _content(name, clean, raw, known, replaced, allow_binary)
        except RedactError as error:
            unsure.append(f"{clean} ({error})")
            replaced.notes.append(f"{clean}: kept as it is ({error})")
    if unsure and not allow_binary:
        raise RedactError(
            f"{'; '.join(unsure)}: cannot be read for sure, so nothing was written; leave them out or allow them"
        )
    if "manifest.json" in files:
        new["manifest.json"] = _manifest(files["manifest.json"], names, new, known, replaced)
    return new, replaced


def _content(
    name: str, clean: str, raw: bytes, known: Known, replaced: Replaced, allow_binary: bool
) -> bytes:
    picture = facts.without_words(raw)
    if picture is not None:
        replaced.notes.append(f"{clean}: words drawn in it were not read")
        return picture
    text, encoding = _text(raw)
    if text is None:
        raise RedactError("SQLite" if raw.startswith(b"SQLite") else "binary")
    data = _json(name, text)
    if name.endswith(".ipynb") and isinstance(data, dict):
        nb, own = redact_notebook(data, known, allow_binary)
        replaced.add(own, f"{clean}: ")
        return json.dumps(nb, indent=1, ensure_ascii=False).encode() + b"\n"
    if data is not None:
        changed = redact_data(data, known, replaced, clean, allow_binary)
        if changed == data:
            return raw
        indent = next((len(line) - len(line.lstrip()) for line in text.splitlines()[1:2]), None)
        return json.dumps(changed, indent=indent).encode() + b"\n"
    if encoding == "latin-1":
        # Not quite UTF-8: names with accents may still stand there in UTF-8.
        text = replace(raw.decode("utf-8", "surrogateescape"), known, replaced, clean)
        text = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return replace(text, known, replaced, clean).encode(encoding)


def _text(raw: bytes) -> tuple[str | None, str]:
    """The text of a file and its encoding; None where it is none.

    Text cut by NULs, as /proc has it, is text.
    """
    if raw.startswith(facts.PACKED):
        return None, ""
    for encoding in ("utf-16",) if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8", "latin-1"):
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        odd = len(_CONTROL.findall(text)) + (text.count("\0") if "\0\0" in text else 0)
        high = sum(byte > 0x7E for byte in raw[:4096]) if encoding == "latin-1" else 0
        if odd * 100 > len(text) or high * 10 > min(len(raw), 4096):
            break
        return text, encoding
    return None, ""


def _json(name: str, text: str | None) -> Any:
    """The data of a file of JSON by its name; None of another, or where it is torn."""
    with suppress(ValueError, RecursionError):
        return json.loads(text) if text and name.endswith((".json", ".ipynb")) else None
    return None


def _unused(name: str, used: Mapping[str, bytes]) -> str:
    names = (f"{name}~{number}" for number in range(2, len(used) + 3))
    return next((one for one in names if one not in used), "") if name in used else name


def _manifest(
    raw: bytes, names: dict[str, str], new: dict[str, bytes], known: Known, replaced: Replaced
) -> bytes:
    """The manifest with the new names, sizes and digests; what is no manifest of ours is
    redacted as data.
    """
    redacted = partial(redact_data, known=known, replaced=replaced, where="manifest.json")
    data = _json("manifest.json", raw.decode("utf-8", "replace"))
    if isinstance(data, dict) and isinstance(data.get("items"), list):
        # The names of its fields are the shape's, whatever a host may be called.
        clean = {key: redacted(value) for key, value in data.items() if key != "items"}
        clean["items"] = []
        for item in data["items"]:
            after = {key: redacted(value) for key, value in item.items()}
            path = names.get(item.get("path") or "")
            if path:
                digest = hashlib.sha256(new[path]).hexdigest()
                after.update(path=path, id=path.removeprefix("raw/"), sha256=digest)
                after["bytes"] = len(new[path])
            clean["items"].append(after)
    else:
        clean = redacted(data)
    return json.dumps(clean, indent=1).encode() + b"\n"


def texts_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """The texts of files by their place: a notebook's by cell and output, without its pictures."""
    texts = {}
    for name, raw in files.items():
        text = _text(raw)[0] or ""
        data = _json(name, text) if name.endswith(".ipynb") else None
        if not isinstance(data, dict):
            texts[name] = text
            continue
        texts[f"{name} metadata"] = _words(data.get("metadata"))
        for number, cell in enumerate(data.get("cells", [])):
            outputs = enumerate(cell.get("outputs", []))
            own = {key: value for key, value in cell.items() if key != "outputs"}
            texts[f"{name} cell {number}"] = _words(own)
            texts |= {f"{name} cell {number} output {at}": _words(output) for at, output in outputs}
    return texts


def _words(data: Any, key: str = "") -> str:
    """Every text of data, a line each, beside its name; what is in a binary form is left out."""
    if isinstance(data, dict):
        return "\n".join(_words(value, str(name)) for name, value in data.items())
    if isinstance(data, list) and not all(isinstance(one, str) for one in data):
        return "\n".join(_words(one, key) for one in data)
    text = "".join(data) if isinstance(data, list) else str(data)
    return "" if BINARY.match(key) else text if "\n" in text else f"{key}: {text}"


def second_scan(texts: Mapping[str, str]) -> list[Find] | str:
    """What detect-secrets finds in texts that should be clean: "NAME line N: KIND". Text by name.

    All its plugins but that for addresses look at every line that has a long run of characters
    or a word such as password, as it is written and as it reads (``views``: without escapes,
    encodings, and tags or line ends that part a word). Entropy is reckoned of every such run,
    in quotes or not. What is allowed, and for what reason, stands in redact.yaml. A reason
    instead of a list where detect-secrets is not installed.
    """
    try:
        import detect_secrets  # noqa: F401
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.settings import default_settings
    except ImportError:
        return "second scan not run because detect-secrets is not installed"
    with default_settings():
        kinds: Any = get_mapping_from_secret_type_to_class()
        plugins = [one() for one in kinds.values()]
        of_lines = [
            one for one in plugins if "Keyword" in one.secret_type or hasattr(one, "entropy_limit")
        ]
        shaped = [one for one in plugins if one not in of_lines]
        # Views of a text share most lines: each is asked about once.
        suspects = cache(lambda line, joined: [*_suspects(line, shaped if joined else plugins)])
        size = sum(map(len, texts.values()))
        each = spread([*texts.items()], lambda named: _finds(*named, suspects), size)
        return [find for finds in each for find in finds]


def _finds(name: str, text: str, suspects: Any) -> list[Find]:
    finds = []
    seen = set()
    packed = View(text).reread(
        "base64",
        lambda run: inner if isinstance(inner := facts.decoded_base64(run[0]), str) else None,
    )
    for way, view in (*views(text), ("base64", packed)):
        for start, end, kind in _places(way == "joined", view.text, suspects):
            find = (view.place(start), view.place(end - 1, True), kind)
            read = view.text[start:end]
            before = view.text[max(0, start - facts.BEFORE) : start]
            if find not in seen and not _is_allowed(read, before):
                line = 1 + text.count("\n", 0, find[0])
                finds.append(Find(f"{name} line {line}: {kind}"))
                finds[-1].value = text[find[0] : find[1]]
                finds[-1].read = read
            seen.add(find)
    return finds


def _places(joined: bool, text: str, suspects: Any) -> Iterator[tuple[int, int, str]]:
    """Where in a text there may be a secret, and of which kind.

    Where lines are joined, by a secret's own shape alone.
    """
    if not joined:
        text = _TAGS.sub(
            lambda tag: _BLANK.sub(" ", tag[0]) if "\n" in tag[0] else " " * len(tag[0]), text
        )
    low = facts.lower(text)
    spots = [at for word in _WORTH_A_LOOK for at in facts.occurrences(word, low)]
    spots += [start for start, _ in facts.Stretches(text).of("worth_a_look")]
    if joined:
        looked = {one.span() for one in _RUN.finditer(text)}
    else:
        looked = {
            (text.rfind("\n", 0, at) + 1, text.find("\n", at) % (len(text) + 1)) for at in spots
        }
    for start, end in sorted(looked):
        line = text[start:end]
        for kind, value in suspects(line, joined):
            at = start + line.find(value)
            yield at, at + len(value), kind


def _suspects(line: str, plugins: list[Any]) -> Iterator[tuple[str, str]]:
    low = line.lower()
    for plugin in plugins:
        names = _NAMES.get(plugin.secret_type)
        if names and not any(word in low for word in names):
            continue
        if not hasattr(plugin, "entropy_limit"):
            values = plugin.analyze_string(line) if "IP" not in plugin.secret_type else ()
        else:
            runs = set(re.findall(rf"[{re.escape(plugin.charset)}]{{20,}}", line))
            values = [
                one for one in runs if plugin.calculate_shannon_entropy(one) > plugin.entropy_limit
            ]
        for value in filter(None, values):
            if len(value) < 5 and "Keyword" not in plugin.secret_type:  # of ghp_... it gives ghp
                value = re.findall(rf"{re.escape(value)}[\w-]*", line)[0]
            yield plugin.secret_type, value


def _is_allowed(value: str, before: str) -> bool:
    """Whether a reason of redact.yaml lets a value pass, by its own shape and by what stands
    before it.
    """
    before = before.rpartition("\n")[2]
    inner = facts.decoded_base64(value)  # what it holds is looked at by itself
    texts = (inner if isinstance(inner, str) else value, value)
    ours = any(map(facts.PSEUDONYM.search, texts)) or WRITING["symbol"].fullmatch(value)
    allowed = any(row.fullmatch(value) for row in _ALLOWED)
    return bool(ours) or allowed or facts.is_evidence(value, before)

"""The evidence bundle: a manifest, and the raw texts that it lists, as a folder or a ``.tar.gz``.

Reading a bundle never executes, imports or unpickles anything; a bundle is refused if it has a file
that the manifest does not name, or that is not what was captured. The errors are those of
helpers.look.archive.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import List, Literal, Optional, TypeVar, cast

from helpers.ground.contract import MOST_SEEN, as_dict, from_json
from helpers.ground.contract import SCHEMA_VERSION as SCHEMA_VERSION
from helpers.ground.places import PROGRAM
from helpers.ground.shapes import NOT_ALLOWED, Reading, absent, seen
from helpers.ground.tables import JsonRow as JsonRow
from helpers.ground.units import LONGEST_SEEN, plain

from .archive import MOST_OF_NAME, MOST_OF_WHY, BundleError, read_files, write_files
from .files import natural

EMPTY = "the file is empty"
Kind = Literal["file", "command"]
BoxKind = Literal["live", "recorded", "constructed"]
Result = TypeVar("Result")
Status = Literal["ok", "not_available", "not_allowed", "timeout", "truncated"]
LONGEST_WORD = 150
LONGEST_COMMAND = 120
"""Letters of a file's name in a bundle: file systems allow 255 bytes, and some of them less."""


@dataclass(frozen=True)
class Item:
    """One source that the capture looked at.

    ``source`` is the path or the command line, ``path`` the file of the bundle with its text, or
    empty. ``why`` says why there is no text, or what was cut off; ``constructed``: a person wrote
    the text, no machine printed it.
    """

    # Read by pydantic where the manifest shape holds an item: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    id: str
    kind: Kind
    source: str
    path: str
    status: Status
    exit: Optional[int] = None
    seconds: float = 0.0
    bytes: int = 0
    sha256: str = ""
    constructed: bool = False
    why: str = ""


@dataclass(frozen=True)
class Manifest:
    """manifest.json of an evidence bundle."""

    __pydantic_config__ = {"extra": "forbid"}

    box: str
    captured_at: str
    kind: BoxKind
    tool_version: str
    items: List[Item]
    schema_version: int = field(default=SCHEMA_VERSION, metadata={"place": -1})


@dataclass(frozen=True)
class Text:
    """The text of one source, or why there is none. ``ok``: there is one; its end may be cut off."""

    text: str
    status: str
    why: str
    source: str
    item: str
    constructed: bool = False

    @property
    def ok(self) -> bool:
        return self.status in ("ok", "truncated")

    def seen(self, value: int | float | str, unit: str = "text") -> Reading:
        """The reading of a value that this text contains."""
        return seen(value, unit, self.source, self.item)

    def missing(self, odd: str = "", unit: str = "text") -> Reading:
        """The reading of a value that is missing, since the text could not be read, or for ``odd``."""
        if self.ok:
            return absent("", odd, unit, self.source, self.item)
        why = self.why
        if not why and self.status == NOT_ALLOWED:
            why = "permission denied"
        elif not why:
            why = self.status.replace("_", " ")
        return absent(self.status, why, unit, self.source, self.item)

    def find(
        self,
        pattern: str,
        odd: str = "no such line in it",
        unit: str = "text",
        scale: int = 0,
    ) -> Reading:
        """The first group of a regular expression: as text, or, if ``scale`` is not 0, as a number
        times ``scale``. ``odd`` is the reason if the text has no match.
        """
        match = re.search(pattern, self.text)
        if match and scale:
            return self.seen(int(match[1]) * scale, unit)
        if match:
            return self.seen(match[1].strip(), unit)
        if not self.text.strip():
            odd = EMPTY
        return self.missing(odd, unit)

    def refused(self, status: object, why: str, unit: str = "text") -> Reading:
        """A reading without a value, whether the text was read or not, by its own ``status``."""
        return absent(status, why, unit, self.source, self.item)

    def of(self, source: str) -> Text:
        """The same text with another source: the path or command that a row of it is about."""
        return replace(self, source=source)


class Row(JsonRow):
    """A JSON object of a bundle. Its methods give a value only if it has the type that is asked
    for, since anybody may have written the bundle.
    """

    def _of_type(self, key: str, default: Result) -> Result:
        """The value of a key if it has the type of ``default``, else ``default``."""
        value = self.get(key)
        if type(value) is type(default):
            return value
        return default

    def text(self, key: str) -> str:
        """The text of a key, or an empty one."""
        return self._of_type(key, "")

    def number(self, key: str) -> int | None:
        """The whole number of a key, or None."""
        value = self.get(key)
        if type(value) is int:
            return value
        return None

    def truth(self, key: str) -> bool | None:
        """True or False if the key has it, or None."""
        value = self.get(key)
        if type(value) is bool:
            return value
        return None

    def many(self, key: str) -> list[object]:
        """The list of a key, or an empty one."""
        return self._of_type(key, [])

    def inner(self, key: str) -> Row:
        """The object of a key, or an empty one."""
        return self._of_type(key, Row())


def _sha256(content: bytes) -> str:
    import hashlib  # OpenSSL takes a while to load, and a text needs none of it

    return hashlib.sha256(content).hexdigest()


def rows(values: object) -> list[Row]:
    """The objects of a list; empty for anything but a list."""
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, Row)]


class Unchanging:
    """An object that never changes, so that it can keep what was once computed from it."""

    def once(self, name: str, make: Callable[[], Result]) -> Result:
        """What ``make`` returns; it is called only the first time that ``name`` is asked for."""
        results: JsonRow = self.__dict__.setdefault("_results", {})
        if name not in results:
            results[name] = make()
        result: Result = results[name]
        return result


@dataclass(frozen=True)
class Bundle(Unchanging):
    """An evidence bundle in memory.

    Every text has a source: a path, a command line, or the name of a table that the capture made.
    ``contents`` has the bytes of the files by their paths in the bundle.
    """

    box: str
    captured_at: str
    kind: str
    tool_version: str
    items: tuple[Item, ...]
    contents: dict[str, bytes] = field(repr=False)

    def read(self, source: str) -> Text:
        """The text captured from ``source``.

        A source that was never looked at reads as not available, never as empty.
        """
        item = self._by_source.get(source)
        if item is None:
            return Text("", "not_available", "not captured", source, "")
        text = ""
        if item.path:
            text = self.contents[item.path].decode("utf-8", "replace")
        return Text(text, item.status, item.why, source, item.id, item.constructed)

    def number(self, source: str, unit: str = "bytes") -> Reading:
        """The whole number in a file of one value, such as a sysfs counter; any other text reads
        as not available.
        """
        text = self.read(source)
        word = text.text.strip()
        if text.ok and re.fullmatch(r"-?[0-9]{1,20}", word):  # 64 bits have 20 digits
            return text.seen(int(word), unit)
        return text.missing(f"{word[:LONGEST_SEEN]!r} is no whole number", unit)

    def word(self, source: str) -> Reading:
        """The text in a file of one value, without the white space around it; an empty file reads
        as not available.
        """
        text = self.read(source)
        word = text.text.strip()
        if text.ok and word:
            return text.seen(word)
        return text.missing(EMPTY)

    def table(self, source: str) -> list[Row]:
        """The rows of a JSON-lines table, such as ``processes``. Lines that are no JSON object are
        left out.
        """
        objects = []
        for line in self.read(source).text.splitlines():
            try:
                row = json.loads(line, object_hook=Row)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, Row):
                objects.append(row)
        return objects

    def sources(self, pattern: str) -> list[str]:
        """Sources that match a shell pattern, in natural order (card2 before card10); ``*``
        does not match a slash.
        """
        depth = pattern.count("/")
        matching = []
        for source in self._by_source:
            # A capture records a pattern without a match as a source, which is no match itself.
            if source.count("/") != depth or "*" in source:
                continue
            if fnmatch.fnmatchcase(source, pattern):
                matching.append(source)
        return sorted(matching, key=natural)

    @cached_property
    def _by_source(self) -> dict[str, Item]:
        return {item.source: item for item in self.items}


class BundleWriter:
    """Collects items in memory and writes the bundle in one step, so that a reader never sees
    half of one.
    """

    def __init__(self, box: str, kind: str, tool_version: str, captured_at: str):
        self.box = box
        # The first fields of Bundle and of Manifest.
        self._head = (box, captured_at, cast("BoxKind", kind), tool_version)
        self._items: list[Item] = []
        self._contents: dict[str, bytes] = {}
        self._files: set[str] = set()
        self._files_and_folders: set[str] = set()

    def add(
        self,
        kind: str,
        source: str,
        content: str | bytes | None = None,
        *,
        status: str = "ok",
        why: str = "",
        exit: int | None = None,
        seconds: float = 0.0,
        constructed: bool = False,
    ) -> Item:
        """Add one source; ``content`` None: it has no text. ``exit`` is a command's exit code."""
        if isinstance(content, str):
            content = _raw(content)
        name = self._name(kind, source)
        path = ""
        size = 0
        digest = ""
        if content is not None:
            path = "raw/" + name
            self._contents[path] = content
            size = len(content)
            digest = _sha256(content)
        item = Item(
            id=name,
            kind=cast("Kind", kind),
            source=source,
            path=path,
            status=cast("Status", status),
            exit=exit,
            seconds=round(seconds, 3),
            bytes=size,
            sha256=digest,
            constructed=constructed,
            why=why,
        )
        self._items.append(item)
        return item

    def _name(self, kind: str, source: str) -> str:
        """A path in the bundle for a source's text, which no other text has."""
        words = []
        for word in source.split("/"):
            if word not in ("", ".", ".."):
                word = word[:LONGEST_WORD]
                words.append(re.sub("[^0-9A-Za-z._:+=-]", "_", word))
        path = "/".join(words)
        if not path:
            path = "nameless"
        if kind == "command":
            path = "command/" + path.replace("/", "_")[:LONGEST_COMMAND]
        elif not source.startswith("/"):
            path = "table/" + path
        name = path
        number = 1
        while self._is_taken(name):
            number += 1
            name = f"~{number}/{path}"
        self._files.add(name)
        self._files_and_folders.update([name, *_folders(name)])
        return name

    def _is_taken(self, name: str) -> bool:
        """Whether a text has that name, or the file system could not have both: one would be a
        file and a folder (/proc/1 beside /proc/1/status).
        """
        if name in self._files_and_folders:
            return True
        return not self._files.isdisjoint(_folders(name))

    def bundle(self) -> Bundle:
        """What has been added so far, as a bundle in memory."""
        return Bundle(*self._head, tuple(self._items), dict(self._contents))

    def manifest(self) -> JsonRow:
        """What manifest.json says of what has been added so far."""
        return as_dict(Manifest(*self._head, self._items))

    def write(self, out: Path, force: bool = False) -> Path:
        """Write to a folder, or to an archive if ``out`` ends in .tar.gz or .tgz; returns ``out``.
        It replaces nothing unless ``force`` is given. Raises BundleError.
        """
        manifest = json.dumps(self.manifest(), indent=1).encode() + b"\n"
        return write_files(
            {"manifest.json": manifest, **self._contents}, Path(out), force
        )


def _raw(text: str) -> bytes:
    """UTF-8; the bytes that surrogateescape kept as they were, question marks for other surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _folders(name: str) -> list[str]:
    """The folders that a path leads through, the innermost first."""
    return [folder.as_posix() for folder in PurePosixPath(name).parents]


def open_bundle(path: str | Path) -> Bundle:
    """Read a bundle from a folder or an archive, and check every file of it.

    Raises a BundleError with a one-line reason.
    """
    path = Path(path)
    files = read_files(path)
    if "manifest.json" not in files:
        expected = f"expected an evidence bundle ({PROGRAM} capture)"
        raise BundleError(f"{path}: no manifest.json; {expected}")
    manifest = _manifest(files.pop("manifest.json"), path)
    digests = {item.path: item.sha256 for item in manifest.items if item.path}
    for name in {**digests, **files}:
        if name not in digests:
            why = "is not named in the manifest; expected only captured files"
        elif name not in files:
            why = "is named in the manifest and missing; copy the whole bundle again"
        elif _sha256(files[name]) != digests[name]:
            why = "is not what was captured (sha256 differs); copy the bundle again"
        else:
            continue
        raise BundleError(f"{path}: {name[:MOST_OF_NAME]!r} {why}")
    return Bundle(
        box=plain(manifest.box),
        captured_at=plain(manifest.captured_at),
        kind=manifest.kind,
        tool_version=plain(manifest.tool_version),
        items=tuple(manifest.items),
        contents=files,
    )


def _manifest(content: bytes, path: Path) -> Manifest:
    """The manifest of the bundle at ``path``. Raises BundleError."""
    try:
        manifest = json.loads(content.decode("utf-8"))
        version = None
        if isinstance(manifest, dict):
            version = manifest.get("schema_version")
        if type(version) is not int or version < SCHEMA_VERSION:
            seen_version = str(version)[:MOST_SEEN]
            raise ValueError(
                f"schema_version {seen_version!r}; expected {SCHEMA_VERSION}"
            )
        if version == SCHEMA_VERSION:
            return from_json(Manifest, manifest, "manifest.json")
    except (ValueError, RecursionError) as error:
        why = str(error)
        if not why:
            why = type(error).__name__
        why = " ".join(why.split())[:MOST_OF_WHY]
        raise BundleError(f"{path}: {why}; capture again") from error
    advice = f"this workbook reads up to {SCHEMA_VERSION}; update the workbook"
    raise BundleError(f"{path}: schema_version {version}; {advice}")

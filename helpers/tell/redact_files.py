"""An evidence bundle, or a run's folder, without the values that must not leave: contents, file names and manifest."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.allocator.trace import TraceError
from helpers.allocator.unpickle import load
from helpers.look.archive import BundleError, check_target, read_files, write_files

from .redact_box import learn_bundle_files
from .redact_known import Known
from .redact_notebook import learn_data, redact_data, redact_notebook
from .redact_pictures import without_words
from .redact_words import Replaced, learn, replace

_CONTROL = re.compile(r"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
_MAGIC = (
    b"SQLite format 3\0",
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"\x28\xb5\x2f\xfd",
    b"\x7fELF",
    b"BZh",
    b"\xfd7zXZ",
    b"%PDF",
)


class RedactError(BundleError):
    """Members that cannot be read for sure. One line that names them."""


def redact_bundle(
    path: str | Path, out: str | Path, known: Known, allow_binary: bool = False, force: bool = False
) -> Replaced:
    """Write the bundle or folder at ``path`` to ``out`` (folder, .tar.gz) with pseudonyms, and say what was replaced.

    Raises RedactError, with nothing written, where a member is binary and not a PNG, JPEG, torch memory snapshot or Parquet;
    ``allow_binary`` lets such members pass as they are. Raises BundleError as open_bundle does, also for links.
    """
    check_target(Path(out), force)
    files, replaced = redact_files(read_files(Path(path)), known, allow_binary)
    write_files(files, Path(out), force)
    return replaced


def redact_files(
    files: dict[str, bytes], known: Known, allow_binary: bool = False
) -> tuple[dict[str, bytes], Replaced]:
    """Files by name with pseudonyms in names and contents; a manifest gets the new names, sizes and digests."""
    learn_bundle_files(files, known)
    texts = {name: _text(raw) for name, raw in files.items()}
    for name, (text, _) in texts.items():
        learn(name, known)
        if (
            text is not None
            and name.endswith((".json", ".ipynb"))
            and (data := _json(text)) is not None
        ):
            learn_data(data, known)
        elif text is not None:
            learn(text, known)
    new: dict[str, bytes] = {}
    names, unsure, replaced = {}, [], Replaced()
    for name, raw in files.items():
        clean = names[name] = _unused(replace(name, known, replaced, "file names"), new)
        if name == "manifest.json":
            new[clean] = raw
            continue
        try:
            new[clean] = _content(name, clean, raw, texts[name], known, replaced, allow_binary)
        except RedactError as error:
            if not allow_binary:
                unsure.append(f"{clean} ({error})")
            new[clean] = raw
            replaced.notes.append(f"{clean}: kept as it is ({error})")
    if unsure:
        raise RedactError(
            f"{'; '.join(unsure)}: cannot be read for sure, so nothing was written; leave them out or allow them"
        )
    if "manifest.json" in files:
        new["manifest.json"] = _manifest(files["manifest.json"], names, new, known, replaced)
    return new, replaced


def _content(
    name: str,
    clean: str,
    raw: bytes,
    text: tuple[str | None, str],
    known: Known,
    replaced: Replaced,
    allow_binary: bool,
) -> bytes:
    picture = without_words(raw)
    if picture is not None:
        replaced.notes.append(f"{clean}: words drawn in it were not read")
        return picture
    if raw.startswith(b"PAR1"):
        return _parquet(raw, known, replaced, clean)
    if raw[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return _pickle(raw, known, replaced, clean)
    words, encoding = text
    if words is None:
        raise RedactError("SQLite" if raw.startswith(b"SQLite") else "binary")
    data = _json(words) if name.endswith((".json", ".ipynb")) else None
    if name.endswith(".ipynb") and isinstance(data, dict):
        nb, found = redact_notebook(data, known, allow_binary)
        for (kind, where), count in found.counts.items():
            replaced.counts[kind, f"{clean}: {where}"] += count
        replaced.notes += [f"{clean}: {note}" for note in found.notes]
        return json.dumps(nb, indent=1, ensure_ascii=False).encode() + b"\n"
    if data is not None:
        changed = redact_data(data, known, replaced, clean, allow_binary)
        if changed == data:
            return raw
        indent = next((len(line) - len(line.lstrip()) for line in words.splitlines()[1:2]), None)
        return json.dumps(changed, indent=indent).encode() + b"\n"
    if encoding == "latin-1":
        # Not quite UTF-8: names with accents may still stand there in UTF-8.
        words = (
            replace(raw.decode("utf-8", "surrogateescape"), known, replaced, clean)
            .encode("utf-8", "surrogateescape")
            .decode("latin-1")
        )
    return replace(words, known, replaced, clean).encode(encoding)


def _text(raw: bytes) -> tuple[str | None, str]:
    """The text of a file and its encoding; None where it is none. Text cut by NULs, as /proc has it, is text."""
    if raw.startswith(_MAGIC):
        return None, ""
    for encoding in ("utf-16",) if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8", "latin-1"):
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        odd = len(_CONTROL.findall(text)) + (text.count("\0") if "\0\0" in text else 0)
        high = sum(byte > 0x7E for byte in raw[:4096]) if encoding == "latin-1" else 0
        return (
            (text, encoding)
            if odd * 100 <= len(text) and high * 10 <= min(len(raw), 4096)
            else (None, "")
        )
    return None, ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _unused(name: str, taken: dict[str, bytes]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}~{number}"
    return free


def _manifest(
    raw: bytes, names: dict[str, str], new: dict[str, bytes], known: Known, replaced: Replaced
) -> bytes:
    """The manifest with the new names, sizes and digests; what is no manifest of ours is redacted as data."""
    data = _json(raw.decode("utf-8", "replace"))
    if not isinstance(data, dict) or not isinstance(data.get("items"), list):
        return (
            json.dumps(redact_data(data, known, replaced, "manifest.json"), indent=1).encode()
            + b"\n"
        )
    # The names of its fields are the shape's, whatever a host may be called.
    clean = {
        key: redact_data(value, known, replaced, "manifest.json")
        for key, value in data.items()
        if key != "items"
    }
    clean["items"] = []
    for item in data["items"]:
        after = {
            key: redact_data(value, known, replaced, "manifest.json") for key, value in item.items()
        }
        path = names.get(item.get("path") or "")
        if path:
            after.update(
                path=path,
                id=path.removeprefix("raw/"),
                bytes=len(new[path]),
                sha256=hashlib.sha256(new[path]).hexdigest(),
            )
        clean["items"].append(after)
    return json.dumps(clean, indent=1).encode() + b"\n"


def _pickle(raw: bytes, known: Known, replaced: Replaced, where: str) -> bytes:
    """A torch memory snapshot: plain data, read without running it."""
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(raw)
        file.flush()
        try:
            data = load(Path(file.name))
        except TraceError:
            raise RedactError("a pickle that is no plain data") from None
    return pickle.dumps(redact_data(data, known, replaced, where), protocol=4)


def _parquet(raw: bytes, known: Known, replaced: Replaced, where: str) -> bytes:
    """Texts of all columns, their names and the metadata of the schema. A column of bytes cannot be read for sure."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(raw))
    except (pa.ArrowException, OSError):
        raise RedactError("a Parquet file that cannot be read") from None
    columns, fields = [], []
    clean: Callable[[Any], Any] = lambda data: redact_data(data, known, replaced, where)  # noqa: E731
    for column, each in zip(table.columns, table.schema, strict=True):
        kind = str(each.type)
        if "binary" in kind:
            raise RedactError("Parquet with a column of bytes")
        if "string" in kind or "struct" in kind or "map" in kind:
            rows = column.to_pylist()
            seen = (
                {row: clean(row) for row in set(rows)} if kind in ("string", "large_string") else {}
            )
            plain = each.type.value_type if pa.types.is_dictionary(each.type) else each.type
            column = pa.array([seen[row] if seen else clean(row) for row in rows], type=plain).cast(
                each.type
            )
        columns.append(column)
        fields.append(each.with_name(clean(each.name)).with_metadata(None))
    meta = {
        key: replace(value.decode("utf-8", "replace"), known, replaced, where).encode()
        for key, value in (table.schema.metadata or {}).items()
        if key != b"ARROW:schema"
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns, schema=pa.schema(fields, metadata=meta or None)), out)
    return out.getvalue()

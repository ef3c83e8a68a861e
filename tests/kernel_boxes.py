"""Bundles made of a few files and tables, for tests of the readers of the kernel's own files."""

import json

from helpers.look.bundle import Bundle, BundleWriter

REFUSED, MISSING = object(), object()


def box(files: dict[str, object] = {}, **tables: list[dict]) -> Bundle:  # noqa: B006 - never changed
    """A bundle of ``files`` (a text, REFUSED or MISSING by path or command) and of tables given as lists of rows."""
    writer = BundleWriter("made-up", "constructed", "0", "2026-01-02T03:04:05Z")
    for source, content in files.items():
        kind = "file" if source.startswith("/") else "command"
        if content is REFUSED:
            writer.add(kind, source, None, status="not_allowed", why="permission denied")
        elif content is MISSING:
            writer.add(kind, source, None, status="not_available", why="no such file")
        else:
            writer.add(kind, source, str(content))
    for name, rows in tables.items():
        writer.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))
    return writer.bundle()


def folder(base: str, **files: object) -> dict[str, object]:
    """Files of one folder by their names."""
    return {f"{base}/{name}": content for name, content in files.items()}

"""The weights that lie in a folder of a Hugging Face model: their bytes, and what is not here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.fits.headers import json_file, pointer_bytes, safetensors_bytes
from helpers.fits.layers import part_of, whole_number

INDEX_SUFFIX = ".index.json"
PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.(?:gguf|safetensors|bin)")
SECOND_COPY = re.compile(
    r"^(?:consolidated|adapter_)|\.(?:fp16|bf16|fp32|ema|non_ema)[.-]"
)
"""Names of files that hold the same weights in another form, or an adapter's."""
FORMS = ("*.safetensors", "*pytorch_model*.bin")


@dataclass
class Stored:
    """``bytes`` of the weights, 0 where nothing says them, and in how many ``files``.

    ``incomplete``: how many parts are absent of which nothing says the size, so that the bytes are
    the least. ``cut_off``: what is not here of weights whose size is known.
    """

    bytes: int
    files: int = 0
    incomplete: str = ""
    cut_off: str = ""


def stored_weights(folder: Path) -> Stored:
    """The weights of a folder, by its index and the headers of its files, in the first of the forms
    that it has. Raises ValueError.
    """
    for form in FORMS:
        files = without_copies(sorted(folder.glob(form)))
        indexes = without_copies(sorted(folder.glob(form + INDEX_SUFFIX)))
        if indexes:
            return _indexed(indexes[0], files)
        if files:
            return of_files(files, absent_parts([file.name for file in files]))
    return Stored(0)


def without_copies(files: Sequence[Path]) -> list[Path]:
    """The files without those that hold the same weights again; all where nothing else is left."""
    plain = [file for file in files if not SECOND_COPY.search(file.name)]
    return plain or list(files)


def _indexed(index_path: Path, files: Sequence[Path]) -> Stored:
    """The weights that an index names, of which all, some or none are here."""
    index = json_file(index_path)
    names = {str(name) for name in part_of(index.get("weight_map")).values()}
    files = [file for file in files if file.name in names]
    absent = ""
    if len(files) < len(names):
        absent = f"{len(names) - len(files)} of {len(names)} parts are not here"
    size = whole_number(part_of(index.get("metadata")).get("total_size"))
    if not size:
        return of_files(files, absent)
    stored = of_files(files, "")
    stored.bytes = size
    if files and absent:
        stored.cut_off = absent
    return stored


def of_files(files: Sequence[Path], absent: str) -> Stored:
    """The weights of these files, and how many of their parts are absent."""
    sizes = [_file_bytes(file) for file in files]
    cut = [cut_off for _, cut_off in sizes if cut_off]
    return Stored(sum(size for size, _ in sizes), len(sizes), absent, "; ".join(cut))


def _file_bytes(file: Path) -> tuple[int, str]:
    """The bytes of the weights in a file, and how much of it is here where its end is not."""
    pointed = pointer_bytes(file)
    if pointed:
        return (
            pointed,
            f"{file.name} is a git-lfs pointer; `git lfs pull` brings the weights",
        )
    if file.suffix == ".bin":
        # pickled by torch: its head does not say where the file ends
        return file.stat().st_size, ""
    return safetensors_bytes(file)


def absent_parts(names: Sequence[str]) -> str:
    """How many parts of weights in several files are not there, by their names; empty: none."""
    matches = [match for match in map(PART.fullmatch, names) if match]
    count = max((int(match[2]) for match in matches), default=0)
    if count <= len(matches):
        return ""
    return f"{count - len(matches)} of {count} parts are not here"

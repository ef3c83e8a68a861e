"""The weights in a folder of a Hugging Face model: their bytes, and the parts that are not here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.fits.headers import json_file, pointer_bytes, safetensors_bytes
from helpers.fits.layers import part_of, whole_number

INDEX_SUFFIX = ".index.json"
PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.(?:gguf|safetensors|bin)")
"""A file of weights in several parts: the name of the model, and how many there are."""
SECOND_COPY = re.compile(
    r"^(?:consolidated|adapter_)|\.(?:fp16|bf16|fp32|ema|non_ema)[.-]"
)
"""In the names of files that have the same weights in another form, or those of an adapter."""
FORMS = ("*.safetensors", "*pytorch_model*.bin")
"""Forms of weights; a folder with both has them twice, and servers load the first."""


@dataclass
class Stored:
    """The weights of a folder: their ``bytes`` (0: not known) and the number of ``files``.

    ``incomplete`` says how many parts of unknown size are absent, so that ``bytes`` is the least.
    ``cut_off`` says what is absent of weights whose size is known. Both are empty where all is
    here.
    """

    bytes: int
    files: int = 0
    incomplete: str = ""
    cut_off: str = ""


def stored_weights(folder: Path) -> Stored:
    """The weights of a folder, in the first of FORMS that it has; with 0 bytes where it has none.

    An index gives the bytes of all parts, also of those that are not here; without one they are
    those of the files. Raises ValueError for files that are not what their names say.
    """
    for form in FORMS:
        files = without_copies(sorted(folder.glob(form)))
        indexes = without_copies(sorted(folder.glob(form + INDEX_SUFFIX)))
        if indexes:
            return _weights_of_index(indexes[0], files)
        if files:
            return of_files(files, absent_parts([file.name for file in files]))
    return Stored(0)


def without_copies(files: Sequence[Path]) -> list[Path]:
    """The files without second copies of the weights; all files where nothing else is left."""
    plain = [file for file in files if not SECOND_COPY.search(file.name)]
    if not plain:
        return list(files)
    return plain


def _weights_of_index(index_path: Path, files: Sequence[Path]) -> Stored:
    """The weights that an index names; all, some or none of their ``files`` are here.

    Where the index has no size, what is here is counted, and parts that are not here make it
    incomplete. Where it has one, the bytes are those of all parts: if only some of them are here,
    they are cut off, and if none is, the model was not downloaded yet, which is no fault.
    """
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
    """The weights in these files; ``absent`` says which parts are not among them."""
    stored = Stored(0, len(files), absent)
    cut_off = []
    for file in files:
        size, lack = _file_bytes(file)
        stored.bytes += size
        if lack:
            cut_off.append(lack)
    stored.cut_off = "; ".join(cut_off)
    return stored


def _file_bytes(file: Path) -> tuple[int, str]:
    """The bytes of the weights that a file has when it is whole, and in words what of it is not
    here; empty where all is.
    """
    pointed = pointer_bytes(file)
    if pointed:
        lack = f"{file.name} is a git-lfs pointer; `git lfs pull` brings the weights"
        return pointed, lack
    if file.suffix == ".bin":
        # pickled by torch: no header says where the file ends
        return file.stat().st_size, ""
    return safetensors_bytes(file)


def absent_parts(names: Sequence[str]) -> str:
    """How many parts of the weights are missing among files of these names; empty where none is."""
    parts = [match for match in map(PART.fullmatch, names) if match]
    count = max((int(part[2]) for part in parts), default=0)
    if count <= len(parts):
        return ""
    return f"{count - len(parts)} of {count} parts are not here"

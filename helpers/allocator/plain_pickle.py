"""A pickle read as data: dicts, lists, tuples, numbers, texts and nothing else.

No code of the file runs, whatever it holds. There are two walls. A scan of the whole file lets
only the opcodes of plain data pass, checks every length and memo index against the file, counts
opcodes and measures nesting, and refuses any key of a dict that is not a text (hashing tuples of
tuples can take forever or crash, and numbers can be chosen to collide). Then an Unpickler that
cannot find any class builds the objects. Real snapshots hold no other opcode (checked with
pickletools on six public files). Nothing here walks the objects, so a list that holds itself
does no harm. weights_only=True is no substitute (CVE-2026-24747).
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

from helpers.allocator import pickle_scan
from helpers.allocator.pickle_scan import scan
from helpers.allocator.trace import MAX_FILE_BYTES, TraceError
from helpers.look import files

MAX_OPCODES = 60_000_000
"""A snapshot of about 250 MB has so many; their objects take at most 5 GB."""
_PROTOCOLS = (2, 3, 4, 5)
"""Binary ones, whose opcodes the scan knows; a file of protocol 0 or 1 begins with no number."""
_OPCODE_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_REFUSED = "a memory snapshot holds plain data only, so it is refused"
_NO_WHOLE_PICKLE = {
    pickle_scan.ENDS_EARLY: "it ends before its last opcode",
    pickle_scan.EMPTY_STACK: "an opcode takes a value that is not there",
    pickle_scan.UNKNOWN_MEMO: "it takes a value again that it did not number",
}
_NOT_PLAIN = {
    pickle_scan.REFUSED: f"holds {{opcode}} at byte {{at:,}}: {_REFUSED} and no part of it was run; "
    "do not open this file with pickle.load",
    pickle_scan.CLAIMS_MORE: "claims a value of {number:,} bytes at byte {at:,} and {left:,} follow: "
    "cut or forged",
    pickle_scan.FAR_MEMO: "numbers a value as {number:,} at byte {at:,}, far above those before it: "
    "forged to fill the memory",
    pickle_scan.KEY_NO_TEXT: "has a key at byte {at:,} that is no text: no memory snapshot has one, "
    "and it can be made to take for ever",
    pickle_scan.TOO_DEEP: f"is nested deeper than {pickle_scan.MAX_DEPTH} at byte {{at:,}}: "
    "no memory snapshot is",
    pickle_scan.TOO_MANY: "has more than {most:,} pickle opcodes; record fewer entries "
    "(max_entries=100000)",
}
"""The end of the message about a file that holds more than plain data; its name stands before."""
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    MemoryError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
)
"""What an Unpickler raises for a cut or forged file: its documentation names no complete list."""


def plain_pickle(path: Path, max_bytes: int = MAX_FILE_BYTES) -> Any:
    """The plain objects in the pickle file.

    Raises TraceError, naming the opcode, where it holds anything else; OSError where it cannot
    be read.
    """
    data = files.read_whole(path, max_bytes)
    # Other files go on to the scan, which refuses or finds broken what is no pickle.
    if data.startswith(pickle.PROTO):
        protocol = next(iter(data[1:2]), "none")
        if protocol not in _PROTOCOLS:
            raise TraceError(
                f"{path.name} has pickle protocol {protocol}: expected 2 to 5"
            )
    try:
        _scan(path.name, data)
        return _Plain(io.BytesIO(data)).load()
    except TraceError:
        raise
    except _BROKEN as error:
        raise TraceError(
            f"{path.name} is no whole pickle ({type(error).__name__}: "
            f"{str(error)[:80]}); copy it again"
        ) from None


class _Plain(pickle.Unpickler):
    """Builds objects and never finds a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise TraceError(
            f"the pickle asks for {module}.{name}: {_REFUSED} and no part of it was "
            "run; do not open this file with pickle.load"
        )

    def persistent_load(self, _pid: object) -> NoReturn:
        raise TraceError(f"the pickle holds a persistent id: {_REFUSED}")


def _scan(name: str, data: bytes) -> None:
    """Scans the pickle of the file ``name``. Raises EOFError where it is not whole
    (``plain_pickle`` puts this into words), TraceError where it holds more than plain data or goes
    beyond a limit.
    """
    finding, at, number = scan(data, MAX_OPCODES)
    if finding == pickle_scan.PLAIN:
        return
    if finding in _NO_WHOLE_PICKLE:
        raise EOFError(_NO_WHOLE_PICKLE[finding])
    opcode = ""
    if finding == pickle_scan.REFUSED:
        opcode = _OPCODE_NAMES.get(data[at], f"0x{data[at]:02x}")
    why = _NOT_PLAIN[finding].format(
        at=at, number=number, left=len(data) - at, opcode=opcode, most=MAX_OPCODES
    )
    raise TraceError(f"{name} {why}")

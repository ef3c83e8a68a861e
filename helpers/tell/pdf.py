"""A page as a PDF, printed by a Chromium of this machine."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from helpers.ground import child

BROWSERS = "chromium chromium-browser google-chrome-stable google-chrome microsoft-edge".split()
"""Programs that print as Chromium does, the free one first."""
PRINTING = (
    "--headless --disable-gpu --no-first-run --disable-extensions --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--no-pdf-header-footer"
).split()
"""Without a window, a first-run dialog, a network of its own, or a header with the file's path."""
PRINT_S = 60.0
"""Seconds for a print: a page takes two or three, the start of a browser on a busy box more."""
# Entries of a PDF's information dictionary (ISO 32000-1, 14.3.3): the name, then a text in
# parentheses, in which a backslash escapes the next character.
_INFO = re.compile(
    rb"(/(?:Creator|Producer|CreationDate|ModDate)\s*\()((?:[^()\\]|\\.)*)\)", re.DOTALL
)


def browser() -> str:
    """The path of the first of BROWSERS that is installed; empty where none is."""
    return next(filter(None, map(shutil.which, BROWSERS)), "")


def write_pdf(html: Path, out: Path, limit_s: float = PRINT_S) -> str:
    """Print a page to ``out``, with a profile that is thrown away and no network.

    Returns why that was not possible; empty where the file was written.
    """
    out.unlink(missing_ok=True)  # an older one may show what the page no longer does
    program = browser()
    if not program:
        return f"no Chromium here; looked for {', '.join(BROWSERS)}"
    with tempfile.TemporaryDirectory(
        prefix="casebook-pdf-", ignore_cleanup_errors=True
    ) as folder:
        printed = Path(folder, "page.pdf")
        command = [program, *PRINTING]
        if os.getuid() == 0:  # Chromium refuses to start as root with its sandbox
            command.append("--no-sandbox")
        command += [
            "--host-resolver-rules=MAP * ~NOTFOUND",  # no name has an address: no network
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={printed}",
            html.resolve().as_uri(),
        ]
        folders = {"HOME": folder, "TMPDIR": folder}
        env = child.environment(with_own_folder=False, more=folders)
        ended = child.watch(command, limit_s, env=env)
        is_pdf = printed.is_file() and printed.read_bytes().startswith(b"%PDF-")
        if ended.how != "exited" or not is_pdf:
            lines = ended.last_words.strip().splitlines()
            last_line = "no words"
            if lines:
                last_line = lines[-1][:200]
            return f"{Path(program).name} {ended.fate}: {last_line}"
        out.write_bytes(_INFO.sub(_blanked, printed.read_bytes()))
    return ""


def _blanked(match: re.Match[bytes]) -> bytes:
    """An entry with blanks in place of its text, so that a PDF that is passed on does not say when
    and with which browser it was printed. Its length stays: a PDF finds its parts by offsets.
    """
    return match[1] + b" " * len(match[2]) + b")"

"""A page as a PDF, printed by a Chromium of this machine."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from helpers.ground import child

BROWSERS = "chromium chromium-browser google-chrome-stable google-chrome microsoft-edge".split()
PRINTING = (
    "--headless --disable-gpu --no-first-run --disable-extensions --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--no-pdf-header-footer"
).split()
PRINT_S = 60.0
_INFO = re.compile(
    rb"(/(?:Creator|Producer|CreationDate|ModDate)\s*\()((?:[^()\\]|\\.)*)\)", re.DOTALL
)


def browser() -> str:
    """The path of a Chromium, or nothing."""
    return next(filter(None, map(shutil.which, BROWSERS)), "")


def write_pdf(html: Path, out: Path, limit_s: float = PRINT_S) -> str:
    """Print a page to ``out``, with a profile that is thrown away and no network.

    Returns why that was not possible, or nothing where the file is there.
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
        if (
            os.getuid() == 0
        ):  # Chromium's sandbox refuses root; the page holds no script
            command.append("--no-sandbox")
        command += [
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder}/profile",
        ]
        command += [f"--print-to-pdf={printed}", html.resolve().as_uri()]
        env = child.environment(
            with_own_folder=False, more={"HOME": folder, "TMPDIR": folder}
        )
        ended = child.watch(command, limit_s, env=env)
        is_pdf = printed.is_file() and printed.read_bytes().startswith(b"%PDF-")
        if ended.how != "exited" or not is_pdf:
            lines = ended.last_words.strip().splitlines()
            last_line = lines[-1] if lines else "no words"
            return f"{Path(program).name} {ended.fate}: {last_line[:200]}"
        out.write_bytes(_INFO.sub(_blanked, printed.read_bytes()))
    return ""


def _blanked(match: re.Match[bytes]) -> bytes:
    """The time and the browser of a print, blank at their length: nobody's business."""
    return match[1] + b" " * len(match[2]) + b")"

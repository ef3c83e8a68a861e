"""A page as PDF through a Chromium of this machine, with a profile that is thrown away and no network, or why there is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "microsoft-edge",
)
LIMIT_S = 60.0


def browser() -> str:
    """The path of a Chromium, or nothing."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), "")


def write_pdf(html: Path, out: Path, limit_s: float = LIMIT_S) -> str:
    """Print a page to ``out``; returns why that was not possible, or nothing where the file is there."""
    out.unlink(missing_ok=True)  # an older one may show what the page no longer does
    program = browser()
    if not program:
        return f"no Chromium here; looked for {', '.join(BROWSERS)}"
    with tempfile.TemporaryDirectory(prefix="casebook-pdf-", ignore_cleanup_errors=True) as folder:
        made = Path(folder, "page.pdf")
        command = [
            program,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={made}",
            html.resolve().as_uri(),
        ]
        if os.getuid() == 0:
            command.insert(
                2, "--no-sandbox"
            )  # Chromium's sandbox refuses root; the page holds no script
        try:
            done = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "HOME": folder, "TMPDIR": folder},
            )
        except OSError as error:
            return f"{program} cannot be started: {error.strerror}"
        try:
            words = (
                done.communicate(timeout=limit_s)[1].decode("utf-8", "replace").strip().splitlines()
            )
        except subprocess.TimeoutExpired:
            return f"{Path(program).name} took longer than {limit_s:g} s"
        finally:
            if done.poll() is None:
                os.killpg(done.pid, signal.SIGKILL)
                done.wait()
        if not made.is_file() or made.read_bytes()[:5] != b"%PDF-":
            last = words[-1][:200] if words else "no words"
            return f"{Path(program).name} ended with exit code {done.returncode}: {last}"
        shutil.copyfile(made, out)
    return ""

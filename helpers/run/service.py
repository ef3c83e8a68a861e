"""How a batch goes on after a logout, a login or a reboot: texts for a person to install, and how to take them away again.

Nothing is installed here and nothing needs root. What a run did to the box stays true: a run that rebooted it is not repeated.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

# One run that the kernel's OOM killer ends must not end the batch (OOMPolicy, systemd 243; the default is stop), and only the
# supervisor is asked to stop (KillMode=mixed): it ends its runs and writes their records. systemd.service(5).
UNIT = """# Save as ~/.config/systemd/user/{name}
# Install: systemctl --user daemon-reload && systemctl --user enable {name}
# Also at boot, before anybody logs in: loginctl enable-linger
# Look: systemctl --user status {name}; journalctl --user -u {name}
# Remove: systemctl --user disable --now {name} && rm ~/.config/systemd/user/{name}
#         loginctl disable-linger   (where nothing else needs it)
[Unit]
Description=Resume the batch {batch}

[Service]
Type=oneshot
WorkingDirectory={here}
ExecStart=/bin/sh -c 'exec "$$@"' sh {words}
KillMode=mixed
TimeoutStopSec=120
OOMPolicy=continue

[Install]
WantedBy=default.target
"""
CRONTAB = """# Add: crontab -e, and paste this line. Remove: crontab -e, and delete it.
@reboot {line}
"""
DETACHED = """# Without a terminal (stop: kill and the number that it prints):
nohup {command} >> {log} 2>&1 < /dev/null & echo $!
# In a terminal to come back to (back: tmux attach -t casebook; stop: Ctrl-C there):
tmux new-session -d -s casebook {word}
# Where logind has KillUserProcesses=yes both end at logout; the user unit with loginctl enable-linger does not.
"""


def resume_argv(plan: Path, checkout: Path, folder: Path, box: str = "") -> list[str]:
    """The command that resumes the batch in ``folder``, with absolute paths, so that it runs from anywhere.

    Raises ValueError for a path that no unit and no crontab can hold.
    """
    program = str(checkout.resolve() / "helpers" / "__main__.py")
    paths = [str(plan.resolve()), "--resume", str(folder.resolve())]
    argv = [sys.executable, program, "run", *paths, *["--box", box] * bool(box)]
    for word in argv:
        if re.search(r"[\x00-\x1f\x7f]", word) or word.endswith(("\\", " ")):
            seen = "seen a line break, or a blank or backslash at its end"
            raise ValueError(f"path {word!r}: {seen}; expected a plain path; rename it")
    return argv


def unit_name(folder: Path) -> str:
    """The name of the batch's unit: letters, digits and ".-_" alone."""
    return f"casebook-{re.sub(r'[^A-Za-z0-9._-]', '_', folder.resolve().name)}.service"


def resume_texts(
    plan: Path, checkout: Path, folder: Path, start: Path, box: str = ""
) -> tuple[str, str, str]:
    """Three ways to have a batch resumed, as ``resume_argv`` does it: a unit, a line of a crontab, lines for a shell.

    The systemd user unit resumes it at every login, or at every boot where the user lingers (loginctl). The crontab is for a box
    without either. The lines for a shell go on after the terminal is closed, but not after a reboot. They start in ``start``.
    """
    argv, name = resume_argv(plan, checkout, folder, box), unit_name(folder)
    here, log = str(start.resolve()), shlex.quote(str(folder.resolve() / "resumed.log"))
    # The program of ExecStart has its variables not expanded, its arguments have: a shell makes all of them arguments.
    quoted = [re.sub(r'(["\\])', r"\\\1", word) for word in argv]
    words = " ".join(f'"{word}"' for word in quoted).replace("%", "%%").replace("$", "$$")
    batch = name[len("casebook-") : -len(".service")]
    unit = UNIT.format(name=name, batch=batch, here=here.replace("%", "%%"), words=words)
    command = shlex.join(argv)
    line = f"cd {shlex.quote(here)} && exec {command} >> {log} 2>&1"
    at_reboot = CRONTAB.format(line=line.replace("%", "\\%"))  # crontab(5): a % ends the command
    detached = DETACHED.format(command=command, log=log, word=shlex.quote(command))
    return unit, at_reboot, detached

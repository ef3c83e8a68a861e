"""Brings .venv to what a verb needs. A warm one is only looked at: no child process, no lock, nothing written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from . import SetupError, pip, stamp, torch_build, venv
from .stamp import Stamp
from .venv import WORKS_NOW

OS_RELEASE = Path("/etc/os-release")
LAB_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}


def ready(
    root: Path,
    needs: tuple[str, ...],
    asked: str | None,
    environ: Mapping[str, str],
    again: bool = False,
) -> Stamp:
    """The record of a .venv that holds the sets in `needs`, set up first where it does not.

    `asked` is --torch or --torch-python, `again` looks for torch anew. Raises SetupError, with one line for the user.
    """
    folder = root / ".venv"
    found = stamp.read(folder)
    if found and not again and not wanting(root, found, needs, asked):
        return found
    try:
        with only_one(root) as lock:
            found = stamp.read(folder)
            if found and not again and not wanting(root, found, needs, asked):
                return found
            with pip.Progress("set-up", lock) as progress:
                return set_up(root, needs, asked, environ, found, again, progress)
    except OSError as error:
        raise SetupError(explained(error, folder)) from error
    except ValueError as error:
        raise SetupError(f"set-up: {error}") from error


def show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def wanting(root: Path, found: Stamp, needs: tuple[str, ...], asked: str | None) -> bool:
    return (
        not found.stands()
        or not venv.has_command(root)
        or bool(found.missing(root, needs))
        or asked not in (None, found.torch.asked)
        or ("torch" in needs and torch_gone(found))
    )


def torch_gone(found: Stamp) -> bool:
    """Whether torch is to be looked for: nobody has yet, or what was chosen is not there any more."""
    if not (found.torch.torch_python or found.torch.why):
        return True
    used = (found.torch.torch_python, found.torch.owner)
    return any(path is not None and not os.path.exists(path) for path in used)


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[int]:
    """One set-up of a checkout at a time. A folder can be locked without a file of its own, also where it is read-only.

    Its calls hold the lock, too: one that outlives a killed set-up still fills .venv.
    """
    handle = os.open(root / "env", os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            show("another set-up of this checkout is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            show(f"no lock here ({error.strerror}): run one set-up at a time")
        yield handle
    finally:
        os.close(handle)


def set_up(
    root: Path,
    needs: tuple[str, ...],
    asked: str | None,
    environ: Mapping[str, str],
    found: Stamp | None,
    again: bool,
    progress: pip.Progress,
) -> Stamp:
    """Make or mend .venv. The sets are recorded when they are whole; an interrupted one is made anew from what was fetched."""
    folder = root / ".venv"
    torch_build.check(asked, environ, folder)
    asked = asked or (found.torch.asked if found else None)
    venv.own(folder)
    if found is None or not found.stands() or (folder / venv.BUSY).exists():
        progress.say(f"setting up {folder} (once; it can be interrupted and goes on from there)")
        progress.doing = "making .venv"
        os_release = OS_RELEASE.read_text() if OS_RELEASE.exists() else ""
        made = venv.make(host_python(folder), root, environ, os_release)
        progress.say(f"  made with {made.way}, Python {made.version}")
        found = Stamp(made, os.path.realpath(made.python), torch=stamp.Torch(asked=asked))
    progress.doing = "reading pip's settings"
    venv.write_command(root)
    filler = venv.Filler(root, found.made, environ, pip.settings(found.made.pip, environ), progress)
    progress.site = venv.packages_folder(folder)
    progress.cache = filler.cache / "archive-v0"
    (folder / venv.BUSY).touch()
    now = found
    missing = found.missing(root, needs)
    if "base" in missing:
        now = replace(now, torch=stamp.Torch(asked=asked))
    stale = "torch" in needs and (again or asked != now.torch.asked or torch_gone(now))
    locks = [stamp.SETS[name][0] for name in missing] + ["torch.txt"] * (stale and asked != "none")
    progress.expected = sum(len(pip.pins(root / "env" / lock)) for lock in locks)
    if "base" in missing:
        filler.fetch_uv()
    for name in missing:
        fill(filler, name)
        if name == "base":
            quiet_lab(folder)
            venv.link_checkout(root)
        now = replace(now, sets={**now.sets, name: stamp.fingerprint(root, name, now.made.version)})
        stamp.write(folder, now)
    if stale:
        now = replace(now, torch=torch_build.settle(filler, asked))
        stamp.write(folder, now)
    shutil.rmtree(filler.cache, ignore_errors=True)
    (folder / venv.BUSY).unlink()
    if progress.done:
        progress.say(f"  set up in {time.monotonic() - progress.began:.0f} s")
    if "base" in missing and not again:  # the verb setup ends with this line itself
        progress.say(f"  {venv.how_to_call(root, environ)}")
    return now


def host_python(folder: Path) -> str:
    """The Python that makes .venv: the running one, or the one under it where the running one is .venv's own."""
    inside = os.path.realpath(sys.prefix) == os.path.realpath(folder)
    return str(getattr(sys, "_base_executable", sys.executable)) if inside else sys.executable


def fill(filler: venv.Filler, name: str) -> None:
    """Install the first lock of a set into .venv; SetupError says in one line why it could not be."""
    # What maintainers need wants the network anyway, and is in no wheelhouse.
    house = filler.root / ("wheelhouse" if name != "maintain" else "no wheelhouse")
    outcome = filler.install([filler.root / "env" / stamp.SETS[name][0]], house=house)
    if outcome.code == 0:
        return
    if outcome.no_space:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    python = ".".join(filler.made.version.split(".")[:2])
    elsewhere = f"`make wheelhouse` under Python {python} on {platform.machine()} on a machine"
    if house.is_dir():
        do = f"fill {house} anew with {elsewhere} with a network, or move it away"
    elif outcome.no_network:
        do = f"no index that is reached has it: {elsewhere} with a network, bring the folder"
    else:
        do = f"see {filler.log}"
    raise SetupError(f"set-up: pip stopped ({outcome.said}); {do}\n{WORKS_NOW}")


def quiet_lab(folder: Path) -> None:
    """JupyterLab asks for its news and for updates at the first start; a box without a network should not be asked."""
    settings = folder / "share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    stamp.write_whole(settings / "overrides.json", json.dumps(LAB_SETTINGS, indent=1) + "\n")


def explained(error: OSError, folder: Path) -> str:
    """One line for an error of the file system."""
    why = str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(folder if folder.exists() else folder.parent).free / 2**30
        seen = f"{free:.1f} GiB free seen, 2 GiB expected with the CPU build of torch, 0.8 without"
        why = f"no space left for {folder} or the temporary folder ({seen}): "
        why += "make room, set TMPDIR or link .venv to another disk"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        why = f"{error.filename or folder} cannot be written ({error.strerror}): "
        why += "copy the checkout to a folder of your own and run this there"
    return f"set-up: {why}\n{WORKS_NOW}"

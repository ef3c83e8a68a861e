"""A program rehearsed as it is now and as it was at a commit, to compare their peaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from helpers.ground.child import watch
from helpers.look import files
from helpers.rehearse.rehearsal import Rehearsal
from helpers.trials.user_program import script_of

GIT_S = 120.0
"""How long a command of git may take: a checkout of a large repository takes a minute."""
Sources = dict[str, list[str]]
"""The lines of Python files, by the names of the files without folders."""


class CommitError(ValueError):
    """Two commits that cannot be compared: one line with what was seen, what was expected and
    what to do.
    """


def git(*words: str, cwd: Path | None = None) -> list[str]:
    """The lines that git prints. Raises CommitError with the last one where it fails."""
    lines: list[str] = []
    ended = watch(["git", *words], GIT_S, cwd=cwd, on_line=lines.append)
    if ended.exit_code != 0:
        expected = "expected a commit of the repository around this folder"
        raise CommitError(
            f"git {words[0]}: {ended.last_line or ended.fate}; {expected}"
        )
    return lines


def commit_of(ref: str) -> str:
    """The short hash of the commit ``ref``. Raises CommitError where there is none."""
    top = git("rev-parse", "--show-toplevel")[0]
    try:
        return git("rev-parse", "--short", "--verify", f"{ref}^{{commit}}")[0]
    except CommitError:
        expected = "expected one of its branches, tags or hashes"
        raise CommitError(f"{ref} is no commit of {top}; {expected}") from None


@contextmanager
def checked_out(ref: str, outputs: Path) -> Iterator[tuple[str, Path]]:
    """The short hash of the commit ``ref``, and this folder as it was then, in a work tree of git
    below ``outputs`` that is removed at the end. Raises CommitError.
    """
    top = Path(git("rev-parse", "--show-toplevel")[0])
    commit = commit_of(ref)
    tree = (outputs / f"commit-{commit}-{os.getpid()}").absolute()
    git("worktree", "add", "--detach", str(tree), commit)
    try:
        folder = tree / Path.cwd().resolve().relative_to(top.resolve())
        if not folder.is_dir():
            name = folder.relative_to(tree)
            raise CommitError(f"{ref} has no folder {name}; expected it at both")
        yield commit, folder
    finally:
        git("worktree", "remove", "--force", str(tree))


def as_it_was(command: Sequence[str], folder: Path) -> list[str]:
    """The command for the work tree around ``folder``: a script with a full path into this
    repository gets its path there, else both runs would use the file that is here now.
    """
    top = git("rev-parse", "--show-toplevel")[0]
    tree = git("rev-parse", "--show-toplevel", cwd=folder)[0]
    script = script_of(command)
    if not script.startswith(f"{top}/"):
        return list(command)
    words = list(command)
    words[words.index(script)] = tree + script.removeprefix(top)
    return words


def sources(folder: Path) -> Sources:
    """The Python files that git knows in the repository of ``folder``, where the program runs. Of
    several files of one name the nearest to that folder counts.
    """
    top = Path(git("rev-parse", "--show-toplevel", cwd=folder)[0])
    paths = [top / name for name in git("ls-files", "*.py", cwd=top)]
    program_folder = folder.resolve()
    # The nearest last, so that it replaces the others.
    paths.sort(key=lambda path: -os.path.relpath(path, program_folder).count("/"))
    lines = {}
    for path in paths:
        content, _, _ = files.read("", str(path))
        if content is not None:
            lines[path.name] = content.decode("utf-8", "replace").splitlines()
    return lines


def rehearsed(
    run: Callable[[list[str], Path], Rehearsal],
    command: Sequence[str],
    folder: Path,
    out: Path,
) -> Path:
    """The trace of the command, rehearsed in ``folder``. ``run`` rehearses a command and writes its
    trace to the path that it is given, which is ``out``.

    Raises CommitError where the program failed for another reason than memory.
    """
    program, *words = command
    if os.path.dirname(program):  # a path from here
        program = os.path.abspath(program)
    # env -C changes the folder for the program alone, and not for this process.
    done = run(["env", "-C", str(folder), program, *words], out)
    if done.trace is None or done.failed_otherwise:
        whys = (done.error, done.why_no_trace, f"it ended with {done.exit_code}")
        why = next(filter(None, whys))
        output = f"; its output is in {out.with_suffix('.log')}"
        raise CommitError(
            f"in {folder}: {why}; expected a program that runs at both{output}"
        )
    return done.trace

"""Runs of one script as forks of a Python that has imported torch: the import takes seconds."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from helpers.allocator.record import INJECT
from helpers.rehearse.reports import Reports
from helpers.rehearse.words import PROGRAMS
from helpers.settings.allocator_text import parts
from helpers.settings.table import CONF_NAMES, OPTIONS
from helpers.trials.user_program import PYTHON

OF_EACH_RUN = re.compile(r"(CASEBOOK|FAKE)_\w+|CUDA_VISIBLE_DEVICES|PWD")
"""Variables that each run has for itself, and that nothing reads while torch is imported."""
MOST_BYTES = 4096
"""Room for the variable CASEBOOK_RECORD, a path, by which the processes of a run are recognized:
each fork writes its own over that of the Python from which it is forked (under_torch/forking.py).
"""


class Forks:
    """A Python that has imported torch, and from which later runs of a script are forked; a
    context, with which it ends.

    It starts after the first run (``learn``), if that has shown that a fork does what a Python of
    its own does.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.python = ""
        self.variables: dict[str, str] = {}

    def __enter__(self) -> Forks:
        self.scratch = tempfile.TemporaryDirectory(prefix="forks-")
        self.socket = os.path.join(self.scratch.name, "socket")
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.scratch.cleanup()

    def before(self, argv: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        """The words that, before ``argv``, let it run as a fork; empty where there is nothing to
        fork from, or where a fork with these variables might do something else.
        """
        if self.process is None or not _is_script(argv) or argv[0] != self.python:
            return []
        if _read_by_import(variables) != _read_by_import(self.variables):
            return []
        return [argv[0], "-I", "-S", str(PROGRAMS / "asking.py"), self.socket]

    def without_gpu(self) -> dict[str, str]:
        """The variables of a fork that finds no GPU and is no rehearsal."""
        without = {"CUDA_VISIBLE_DEVICES": "", "FAKE_DEVICES": "0", "FAKE_PEAKS": ""}
        variables = self.variables | without
        for name in self.variables:
            if name.startswith("CASEBOOK_"):
                del variables[name]
        return variables

    def learn(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        reports: Reports,
        prefix: Sequence[str],
    ) -> None:
        """Start that Python after a run of ``argv`` with these ``reports``, if its script imports
        torch itself, and before it changes its environment.

        ``prefix``: words before the command of that Python (same_addresses in run.py).
        """
        if self.process is not None or not _is_script(argv):
            return
        # The program itself is this process's child; the others that reported are its children.
        children = [report for report in reports if report["parent"] == os.getpid()]
        if not children or not children[0]["imports_torch_as_started"]:
            return
        modules = ["torch"]
        # Its import takes seconds, too; a program that did not import it gets the same without.
        if children[0]["has_compiler"]:
            modules.append("torch._dynamo")
        self.python = argv[0]
        self.variables = dict(variables)
        # It is no rehearsal itself: only its forks begin one.
        paths = variables["PYTHONPATH"].split(os.pathsep)
        paths = [path for path in paths if path != str(INJECT)]
        environment = {
            **os.environ,
            **variables,
            "CASEBOOK_RECORD": " " * MOST_BYTES,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        del environment["CASEBOOK_REHEARSE"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(self.socket)
            server.listen()
            program = str(PROGRAMS / "forking.py")
            words = [program, str(server.fileno()), argv[1], *modules]
            self.process = subprocess.Popen(
                [*prefix, argv[0], *words],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[server.fileno()],
                start_new_session=True,
            )


def _is_script(argv: Sequence[str]) -> bool:
    """Whether a command runs a script by Python, without options of Python."""
    names_python = PYTHON.fullmatch(os.path.basename(argv[0]))
    return bool(names_python) and len(argv) > 1 and argv[1].endswith(".py")


def _read_by_import(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that may matter while torch is imported. Of the allocator's options only those
    that _is_read_early names do.
    """
    read = dict(variables)
    for name in variables:
        if OF_EACH_RUN.fullmatch(name):
            del read[name]
    for name in CONF_NAMES:
        options = parts(read.pop(name, ""))
        early = [f"{key}:{value}" for key, value in options if _is_read_early(key)]
        read[name] = ",".join(early)
    return read


def _is_read_early(option: str) -> bool:
    """Whether torch reads an option of the allocator while it is imported: one that the table of
    settings does not know, or for which it says so. It reads others at its first use of the GPU.
    """
    return option not in OPTIONS or bool(OPTIONS[option].moment)

"""A verb of the command line, run in the process of a test."""

import contextlib
import io
from typing import NamedTuple

from helpers import cli


class Done(NamedTuple):
    """Its exit code, its answer, and its complaint."""

    code: int
    out: str
    err: str


def verb(*argv):
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([*map(str, argv)])
    return Done(code, out.getvalue(), err.getvalue())

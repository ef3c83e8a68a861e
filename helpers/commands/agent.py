"""The command that answers agents."""

from argparse import Namespace
from pathlib import Path

from helpers.commands.use import WrongUse

PACKAGE = "mcp"
MISSING = (
    "mcp: the package mcp is not installed for {python}; install it there: "
    "{python} -m pip install 'mcp>=2.3,<3'"
)


def mcp(arguments: Namespace) -> int:
    """Answer an agent: a server of the Model Context Protocol on standard input and output.

    --root DIR ...: a folder whose files the agent may name (default: this one); can be repeated
    Example: mcp --root ~/training
    """
    import importlib.util
    import sys

    if importlib.util.find_spec(PACKAGE) is None:
        raise WrongUse(MISSING.format(python=sys.executable))
    roots = [Path(folder) for folder in arguments.root]
    if not roots:
        roots = [Path()]
    for root in roots:
        if not root.is_dir():
            raise WrongUse(f"mcp: seen --root {root}; expected a folder")
    from helpers.agent.server import server

    server(roots).run()
    return 0

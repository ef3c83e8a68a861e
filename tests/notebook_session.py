"""Runs cells in an IPython of its own, as a notebook does, and says what each showed.

Each line of standard input is a JSON object: "cells", a list, and "folder", to run them in. Each is answered by a line: a JSON
list of {"text", "html"}. Every list runs in a fork, so that it costs no second import of what was named on the command line.
"""

import importlib
import json
import os
import sys

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


def answers(cells):
    """What each cell showed: text as a terminal shows it, and HTML."""
    shell = InteractiveShell.instance(colors="nocolor")
    for cell in cells:
        with capture_output() as captured:
            shell.run_cell(cell, store_history=True)
        outputs = [output.data for output in captured.outputs]
        text = [captured.stdout, captured.stderr]
        text += [data.get("text/plain", "") for data in outputs]
        yield {
            "text": "\n".join(text),
            "html": "".join(data.get("text/html", "") for data in outputs),
        }


def main():
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            os.chdir(asked["folder"])
            print(json.dumps(list(answers(asked["cells"]))), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()

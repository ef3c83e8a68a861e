"""``python3 -m helpers``: the command line.

The checkout is put first on sys.path, so that no other package called helpers is found before it.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from helpers.cli import main

    sys.exit(main())

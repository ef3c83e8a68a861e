"""``python3 -m helpers``: the command line.

The checkout stands first on sys.path, whatever lies beside the caller.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from helpers.cli import main

    sys.exit(main())

"""Write a table of numbers as a torch file: ``save_features.py SOURCE.json OUT.pt``; null becomes NaN. Written in one step."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    import torch

    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    table = json.loads(source.read_text())
    rows = [[float("nan") if value is None else value for value in row] for row in table["features"]]
    features = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(table["columns"]))
    part = out.with_name(out.name + ".part")
    torch.save({"features": features, "sessions": table["sessions"], "columns": table["columns"]}, part)
    part.replace(out)


if __name__ == "__main__":
    main()

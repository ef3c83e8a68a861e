"""A list is read as the default of a parameter, and under another name."""

import torch

torch.manual_seed(0)
kept = []
seen: list = kept


def mean(entries=kept):
    return sum(float(entry.sum()) for entry in entries) / len(entries)


for step in range(5):
    kept.append(torch.randn(4))
    print(f"{float(kept[-1].sum()):.9e}")
print(f"{mean():.9e}", len(seen))

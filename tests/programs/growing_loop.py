"""A loop whose sequences grow, with plain tensors and no kernels: what env/traces/growing-loop.parquet was recorded from."""

import torch

WIDTH = 1024
LAYERS = 24
BATCH = 16


def parameters():
    return [
        torch.empty(12 * WIDTH * WIDTH, dtype=torch.float16, device="cuda") for _ in range(LAYERS)
    ]


def optimizer_state(weights):
    return [
        torch.empty(2 * weight.numel(), dtype=torch.float32, device="cuda") for weight in weights
    ]


def layer(length):
    scores = torch.empty(BATCH * 16 * length * length, dtype=torch.float16, device="cuda")
    kept = torch.empty(BATCH * length * WIDTH * 8, dtype=torch.float16, device="cuda")
    del scores
    return kept


def evaluation(length):
    return torch.empty(BATCH * length * 160, dtype=torch.float16, device="cuda")


weights = parameters()
state = optimizer_state(weights)
curves = []
for length in range(128, 2432, 24):
    activations = [layer(length) for _ in weights]
    while activations:
        gradient = torch.empty(12 * WIDTH * WIDTH, dtype=torch.float16, device="cuda")
        activations.pop()
        del gradient
        if len(activations) % 8 == 4:
            curves.append(evaluation(length))

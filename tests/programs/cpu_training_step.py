"""A small transformer trained for a few steps on the CPU; what env/traces/cpu-training-step.parquet was recorded from."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
model = nn.Sequential(
    nn.Embedding(8192, 512), nn.TransformerEncoder(layer, 6), nn.Linear(512, 8192)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for length in (96, 128, 160, 192, 256):
    tokens = torch.randint(0, 8192, (8, length))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()

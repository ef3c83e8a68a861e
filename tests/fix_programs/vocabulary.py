"""A language model whose logits are the largest tensor, with padding and smoothed labels."""

import torch
import torch.nn.functional as F
from torch import nn

PAD = 0
VOCABULARY = 500


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16, padding_idx=PAD)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, VOCABULARY, bias=False)

    def forward(self, ids):
        x = torch.tanh(self.embed(ids))
        return self.head(self.norm(x))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(4):
    ids = torch.randint(1, VOCABULARY, (12, 50))
    ids[:3, 30:] = PAD
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(
        logits.transpose(1, 2), ids[:, 1:], ignore_index=PAD, label_smoothing=0.1
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.9e}")

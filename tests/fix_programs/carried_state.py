"""A recurrent model whose state goes on from window to window, with its graph."""

import torch
from torch import nn


class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, x, state):
        outputs = []
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
            outputs.append(state)
        return self.out(torch.stack(outputs, dim=1)), state


torch.manual_seed(0)
model = Stream()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = torch.zeros(2, 8)
for _ in range(4):
    x = torch.randn(2, 5, 4)
    guess, state = model(x, state)
    loss = (guess - x).pow(2).mean()
    loss.backward(retain_graph=True)
    print(f"{loss.item():.9e}")
optimizer.step()

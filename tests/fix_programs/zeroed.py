"""A weight without a gradient in most steps still decays, as its gradient is zero and not missing."""

import torch

torch.manual_seed(0)
first, second = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
weights = [*first.parameters(), *second.parameters()]
optimizer = torch.optim.AdamW(weights, lr=0.1, weight_decay=0.5)
history = []
for step in range(5):
    net = first if step else second
    loss = net(torch.randn(6, 8)).pow(2).mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    history.append(loss)
print(f"{float(second.weight.detach().norm()):.9e}")

"""A term of the loss is added up before the backward pass: without its graph nothing trains by it."""

import torch

torch.manual_seed(0)
net = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    total = net(torch.ones(1, 8)).sum()
    for part in range(3):
        out = net(torch.randn(6, 8))
        total += out.pow(2).mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(f"{float(total):.9e}")

"""Programs keep what nobody needs in many ways; this one in most of them."""

import functools

import torch
import torch.nn as nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)
        self.cache = {}

    def positions(self, length):
        if length not in self.cache:
            self.cache[length] = torch.arange(length).float() / length
        return self.cache[length]

    def forward(self, x):
        x = x + self.positions(x.shape[1])
        return self.head(self.body(x))


class Run:
    def __init__(self, number):
        self.number = number
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.score = None

    def fit(self):
        for _ in range(3):
            x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.score = loss.item()


@functools.lru_cache(maxsize=None)
def window(length):
    return torch.hann_window(length)


def evaluate(net, batches):
    outputs = []
    total = 0
    for x in batches:
        out = net(x)
        loss = out.pow(2).mean()
        total += loss
        outputs.append((out, loss))
        print(f"{float(out.sum()):.9e}")
    print(f"{float(total):.9e}", len(outputs), f"{sum(float(loss) for _, loss in outputs):.9e}")


runs = []
for number in range(3):
    run = Run(number)
    run.fit()
    runs.append(run)
    print(number, f"{run.score:.9e}", f"{float(window(4 + number).sum()):.6e}")
print([f"{run.score:.9e}" for run in runs])
evaluate(Net(), [torch.randn(5, 8) for _ in range(4)])

stages = []
net = Net()
for stage in range(3):
    stages.append(torch.optim.AdamW(net.parameters(), lr=1e-3))
    x = torch.randn(6, 8)
    loss = net(x).pow(2).mean()
    stages[-1].zero_grad()
    loss.backward()
    stages[-1].step()
    print(f"{loss.item():.9e}")

streams = {}
for fold in range(3):
    streams[fold] = (torch.randn(4, 8) for _ in range(2))
    for x in streams[fold]:
        print(f"{float(net(x).sum()):.9e}")

"""A few training steps of a model of one kind, written as one writes them for a GPU. `steps.py --help` has the choices."""

import argparse
import contextlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def through(part, x):
    """x through a part of the model, which the backward pass computes again where that is asked for."""
    again = given.feature == "checkpoint"
    return checkpoint(part, x, use_reentrant=False) if again else part(x)


class Mlp(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 128)

    def forward(self, x):
        for part in self.parts:
            x = x + through(part, x)
        return self.head(x)


class Transformer(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.words = nn.Embedding(2048, width)
        self.parts = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 128)

    def forward(self, x):
        x = self.words(x)
        for part in self.parts:
            x = through(part, x)
        return self.head(x.mean(1))


class Convnet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        wide = width // 4
        self.stem = nn.Conv2d(3, wide, 3, 2, 1)
        self.parts = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(wide, wide, 3, 1, 1, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU(),
                nn.Conv2d(wide, wide, 3, 1, 1),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(wide, 128)

    def forward(self, x):
        x = functional.max_pool2d(self.stem(x), 2)
        for part in self.parts:
            x = x + through(part, x)
        return self.head(x.mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.words = nn.Embedding(2048, width)
        self.cells = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, x):
        x = self.words(x)
        return self.head(through(self.cells, x)[0][:, -1])


KINDS = {"mlp": Mlp, "transformer": Transformer, "convnet": Convnet, "lstm": Lstm}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
}
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="transformer", choices=KINDS)
parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
parser.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
features = ("none", "checkpoint", "streams", "expandable", "graphs")
parser.add_argument("--feature", default="none", choices=features)
for name, value in (("--batch", 16), ("--steps", 4), ("--width", 256), ("--depth", 4)):
    parser.add_argument(name, type=int, default=value)
given = parser.parse_args()


def batch(step):
    rows = given.batch + 2 * (step % 3)  # sizes change, as they do
    if given.feature == "graphs":
        rows = given.batch
    numbers = {"mlp": (64 * rows, given.width), "convnet": (rows, 3, 64, 64)}
    kind = torch.float32 if given.model in numbers else torch.long
    x = torch.zeros(numbers.get(given.model, (rows, 128)), dtype=kind).pin_memory()
    return x, torch.zeros(len(x), dtype=torch.long)


torch.manual_seed(0)
model = KINDS[given.model](given.width, given.depth).cuda()
optimizer = OPTIMIZERS[given.optimizer](model.parameters())
scaler = torch.amp.GradScaler("cuda", enabled=given.precision == "fp16")
kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(given.precision)
side = torch.cuda.Stream() if given.feature == "streams" else None


def forward_backward(x, target):
    cached = given.feature != "graphs"
    with torch.autocast("cuda", dtype=kind, enabled=kind is not None, cache_enabled=cached):
        loss = functional.cross_entropy(model(x).float(), target)
    scaler.scale(loss).backward()
    return loss


def to_device(step):
    with torch.cuda.stream(side) if side else contextlib.nullcontext():
        return [one.to("cuda", non_blocking=True) for one in batch(step)]


if given.feature == "graphs":
    x, target = to_device(0)
    graph = torch.cuda.CUDAGraph()
    apart = torch.cuda.Stream()
    apart.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(apart):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            forward_backward(x, target)
    torch.cuda.current_stream().wait_stream(apart)
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        forward_backward(x, target)
for step in range(given.steps):
    if given.feature == "graphs":
        for own, new in zip((x, target), batch(step), strict=True):
            own.copy_(new, non_blocking=True)
        graph.replay()
    else:
        x, target = to_device(step)
        if side:
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
            target.record_stream(torch.cuda.current_stream())
        optimizer.zero_grad(set_to_none=True)
        forward_backward(x, target)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
print("parameters", sum(one.numel() for one in model.parameters()))

"""A small transformer, data made on the spot, and one training of it, as every way to train and
every workload does it.

The data follow a rule that can be learnt. A step is the same for every path: draw a batch,
gradients of its mean loss, one step of AdamW; how the gradients come about is what the paths
differ in.

Bitwise equal to the single device: the gradients of the first step, every loss, every parameter
at the end. Where sums are taken in another order that cannot be; then the largest error of a
gradient, over that tensor's largest element, must be below GRADIENT_TOLERANCE and each loss
within LOSS_TOLERANCE of its value. fp32 rounds at 6e-8 and sums some 1,000 terms here; a lost,
doubled or wrongly weighted piece shows as 1e-2 or more.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from helpers.trials.under_torch import checkpoint
from helpers.trials.under_torch.device import Peak, lift_limit
from helpers.trials.under_torch.frame import Row

GRADIENT_TOLERANCE = 1e-4
LOSS_TOLERANCE = 1e-4
REFERENCE = "single"
Answer = Generator[Row, None, Row]
"""What a way to train is: it yields a row a step, and returns what it found."""
SAMPLES = 256
ABOUT = ("seed", "vocab", "width", "layers", "heads", "length", "batch", "dropout")
SMALLEST = {"vocab": 8, "width": 8, "layers": 1, "heads": 1, "length": 4, "batch": 2, "pieces": 1}


class Embedding(nn.Module):
    """Tokens to vectors, with the sines and cosines of the position added: no parameter, so any
    length will do.
    """

    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors = self.tokens(tokens)
        length, width = vectors.shape[1:]
        speed = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
        angle = torch.arange(length)[:, None] * speed
        return vectors + torch.cat([angle.sin(), angle.cos()], 1).to(vectors)


class Block(nn.Module):
    """Causal self-attention and a network of two layers, each added to what came in; written
    out, so it is deterministic.
    """

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.between = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = self.dropout(weights.masked_fill(later, float("-inf")).softmax(-1)) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.between(x)))))


class Transformer(nn.Module):
    """A language model of layers that are all called alike, so that a stage of them is a model
    too.
    """

    def __init__(self, spec: dict[str, Any]):
        super().__init__()
        width = spec["width"]
        vocab = spec["vocab"]
        blocks = [Block(width, spec["heads"], spec["dropout"]) for _ in range(spec["layers"])]
        self.layers = nn.ModuleList([Embedding(vocab, width), *blocks, nn.Linear(width, vocab)])
        self.recompute = bool(spec.get("recompute"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            again = self.recompute and isinstance(layer, Block)
            x = recomputed(layer, x, use_reentrant=False) if again else layer(x)
        return x


class Data:
    """Sequences after a rule that can be learnt, and the order they are drawn in; ``state`` is
    the order's, to the sample.
    """

    def __init__(self, spec: dict[str, Any]):
        self.generator = torch.Generator().manual_seed(spec["seed"])
        self.batch = spec["batch"]
        self.rows = self.sequences(spec["vocab"], spec["length"], max(SAMPLES, self.batch))
        self.order = torch.randperm(len(self.rows), generator=self.generator)
        self.position = 0

    def sequences(self, vocab: int, length: int, count: int) -> torch.Tensor:
        columns = [torch.randint(vocab, (count,), generator=self.generator)]
        for _ in range(length):
            chance = torch.randint(2, (count,), generator=self.generator)
            columns.append((3 * columns[-1] + 1 + chance) % vocab)
        return torch.stack(columns, 1)

    def next(self) -> torch.Tensor:
        """The numbers of the next batch's samples; a new order where fewer are left."""
        if self.position + self.batch > len(self.order):
            self.order = torch.randperm(len(self.rows), generator=self.generator)
            self.position = 0
        self.position += self.batch
        return self.order[self.position - self.batch : self.position]

    def state(self) -> dict[str, Any]:
        generator = self.generator.get_state()
        return {"generator": generator, "order": self.order, "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.order = state["order"]
        self.position = state["position"]


class Run:
    """One training: model, optimizer, data, and every loss so far.

    A step is the same for every path: ``forward_backward`` and what the model is wrapped in
    differ.
    """

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.device = spec["device"]
        self.pieces = spec.get("pieces", 1)
        checkpoint.seed(spec["seed"])
        self.model = Transformer(spec).to(self.device)
        self.call = self.prepared(self.model)
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = Data(spec)
        self.losses: list[float] = []
        self.seen = hashlib.sha256().hexdigest()
        self.after_first: Callable[[], None] = lambda: None

    def prepared(self, model: Any) -> Any:
        """What is called: the model, wrapped or cut before the optimizer sees its parameters."""
        return model

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.call(tokens[:, :-1])
        return nn.functional.cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())

    def forward_backward(self, tokens: torch.Tensor) -> float:
        """Gradients of the mean loss over all of ``tokens``, in ``pieces`` pieces; each counts
        by its share of the samples.
        """
        total = torch.zeros((), device=self.device)
        for part in tokens.chunk(self.pieces):
            loss = self.loss(part) * (len(part) / len(tokens))
            loss.backward()
            total += loss.detach()
        return float(total)

    def step(self) -> float:
        numbers = self.data.next()
        tokens = self.data.rows[numbers].to(self.device)
        if self.spec["dropout"]:
            # So that Python's generator decides something too.
            tokens[random.randrange(len(tokens))] = 0
        loss = self.forward_backward(tokens)
        if not self.losses:
            self.after_first()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss)
        self.seen = hashlib.sha256((self.seen + str(numbers.tolist())).encode()).hexdigest()
        return loss

    def state(self) -> dict[str, Any]:
        return {
            "training": self.about(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.state(),
            "random": checkpoint.rng_states(),
            "losses": list(self.losses),
            "seen": self.seen,
        }

    def about(self) -> dict[str, Any]:
        return {key: self.spec[key] for key in ABOUT}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there. Raises CheckpointError for the state of another training."""
        if state["training"] != self.about():
            raise checkpoint.CheckpointError(
                f"the checkpoint is of another training ({state['training']}); expected "
                f"{self.about()}; give each its own folder"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.data.restore(state["data"])
        self.losses = list(state["losses"])
        self.seen = state["seen"]
        checkpoint.set_rng_states(state["random"])

    def digest(self) -> str:
        """SHA-256 of everything that decides what comes next, and of what came."""
        return checkpoint.fingerprint(self.state())


def warm(spec: dict[str, Any]) -> None:
    """One step of the smallest model: what torch imports at its first optimizer step (70 MB of
    its compiler, 2.13) and a GPU's context are then no part of what is measured, and cannot
    fail under a limit.
    """
    Run({"dropout": 0.0, **spec, **SMALLEST, "recompute": True}).step()


# What a training took, and whether it is the reference's.


def whole(tensor: Any) -> Any:
    """The tensor, or all of a sharded one, which every rank must ask for."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trained(
    spec: Row, kind: Callable[[Row], Run] = Run, rank: int = 0
) -> Generator[Row, None, tuple[Any, Row]]:
    """A run of that kind, all steps of it; the run, and the peaks, whether it is the
    reference's training and the largest error of a gradient.
    """
    peak = Peak(torch, spec["device"])
    run = kind(spec)
    path = Path(spec["folder"]) / f"{spec['name']}-{rank}-gradients.pt"

    def keep_gradients() -> None:
        torch.save({name: whole(one.grad) for name, one in run.model.named_parameters()}, path)

    run.after_first = keep_gradients
    for step in range(spec["steps"]):
        yield {"event": "step", "step": step + 1, "loss": run.step()}
    # What follows is no part of the training: neither its peak nor its limit.
    peaks = peak.figures()
    lift_limit(torch, run.device)
    equal, worst = compared(run, spec, torch.load(path, map_location="cpu", weights_only=True))
    return run, {**peaks, "equal": equal, "worst": worst}


def compared(run: Run, spec: Row, gradients: dict[str, torch.Tensor]) -> tuple[str, float]:
    """Against the result that the reference keeps here: ``bitwise``, ``within tolerance``,
    ``no`` or ``not applicable``; and the largest error of a gradient.
    """
    kept = Path(spec["folder"]) / f"{REFERENCE}.pt"
    ends = {name: whole(one).detach().cpu() for name, one in run.model.named_parameters()}
    if spec["name"] == REFERENCE:
        torch.save({"gradients": gradients, "losses": run.losses, "ends": ends}, kept)
    if spec["name"] == REFERENCE or not kept.exists():
        return "not applicable", 0.0
    other = torch.load(kept, map_location="cpu", weights_only=True)
    slopes = [(one, other["gradients"][name]) for name, one in gradients.items()]
    pairs = slopes + [(one, other["ends"][name]) for name, one in ends.items()]
    if run.losses == other["losses"] and all(torch.equal(one, two) for one, two in pairs):
        return "bitwise", 0.0
    errors = [float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in slopes]
    far = [
        loss
        for loss, there in zip(run.losses, other["losses"])  # noqa: B905 -- Python 3.9 has no strict
        if not abs(loss - there) <= LOSS_TOLERANCE * abs(loss)
    ]
    near = not far and len(run.losses) == len(other["losses"])
    near = near and all(error <= GRADIENT_TOLERANCE for error in errors)
    return "within tolerance" if near else "no", max(errors)


def in_words(answer: Row, *says: str) -> Row:
    """The answer with what there is to say of it, the largest error of a gradient included
    where there is one.
    """
    error = f"largest gradient error {answer['worst']:.0e} of {GRADIENT_TOLERANCE:.0e}"
    errors = [error] if answer["equal"] in ("within tolerance", "no") else []
    return {**answer, "says": "; ".join([*says, *errors])}

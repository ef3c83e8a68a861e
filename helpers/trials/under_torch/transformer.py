"""A small transformer, data made on the spot, and one training of it, as every way to train and
every workload does it.

The data follow a rule that can be learnt. A step is the same for every path: draw a batch,
gradients of its mean loss, one step of AdamW; how the gradients come about is what the paths
differ in.

Bitwise equal to the single device: every loss, the gradients' norm in the first step, every
parameter at the end. Where sums are taken in another order that cannot be; then each loss and the
norm must be within TOLERANCE of its value. fp32 rounds at 6e-8 and sums some 1,000 terms here; a
lost, doubled or wrongly weighted piece shows as 1e-2 or more. bfloat16 rounds at 4e-3.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint as recomputed

from helpers.trials.under_torch import checkpoint
from helpers.trials.under_torch.device import Peak
from helpers.trials.under_torch.frame import Row

TOLERANCE = {False: 1e-4, True: 5e-2}
"""The largest relative error of a training in float32, and with activations in bfloat16."""
REFERENCE = "single"
Answer = Generator[Row, None, Row]
"""What a way to train is: it yields a row a step, and returns what it found."""
SAMPLES = 256
SMALLEST = {
    "vocab": 8,
    "width": 8,
    "layers": 1,
    "heads": 1,
    "length": 4,
    "batch": 2,
    "pieces": 1,
}


class Embedding(nn.Module):
    """Tokens to vectors, with the sines and cosines of the position added: no parameter, so any
    length will do.
    """

    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.tokens(tokens)
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
        widened = nn.functional.gelu(self.up(self.between(x)))
        return x + cast(torch.Tensor, self.dropout(self.down(widened)))


class Transformer(nn.Module):
    """A language model of layers that are all called alike, so that a stage of them is a model
    too.
    """

    def __init__(self, spec: Row):
        super().__init__()
        width = spec["width"]
        vocab = spec["vocab"]
        blocks = [
            Block(width, spec["heads"], spec["dropout"]) for _ in range(spec["layers"])
        ]
        self.layers = nn.ModuleList(
            [Embedding(vocab, width), *blocks, nn.Linear(width, vocab)]
        )
        self.recompute = bool(spec.get("recompute"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.recompute and isinstance(layer, Block):
                x = recomputed(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x


class Data:
    """Sequences after a rule that can be learnt, and the order they are drawn in; ``state`` is
    the order's, to the sample.
    """

    def __init__(self, spec: Row):
        self.generator = torch.Generator().manual_seed(spec["seed"])
        self.batch = spec["batch"]
        self.rows = self.sequences(
            spec["vocab"], spec["length"], max(SAMPLES, self.batch)
        )
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

    def state(self) -> Row:
        generator = self.generator.get_state()
        return {"generator": generator, "order": self.order, "position": self.position}

    def restore(self, state: Row) -> None:
        self.generator.set_state(state["generator"])
        self.order = state["order"]
        self.position = state["position"]


class Run:
    """One training: model, optimizer, data, and every loss so far.

    A step is the same for every path: ``forward_backward`` and what the model is wrapped in
    differ.
    """

    def __init__(self, spec: Row):
        self.spec = spec
        self.device = spec["device"]
        self.pieces = spec.get("pieces", 1)
        self.bf16 = bool(spec.get("bf16"))
        checkpoint.seed(spec["seed"])
        self.model = Transformer(spec).to(self.device)
        self.call = self.prepared(self.model)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3
        )
        self.data = Data(spec)
        self.losses: list[float] = []
        self.after_first_backward: Callable[[], None] = lambda: None

    def prepared(self, model: nn.Module) -> nn.Module:
        """What is called: the model, wrapped or cut before the optimizer sees its parameters."""
        return model

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        kind = torch.device(self.device).type
        with contextlib.ExitStack() as around:
            if self.spec.get("offload"):
                around.enter_context(save_on_cpu(kind == "cuda"))
            around.enter_context(
                torch.autocast(kind, torch.bfloat16, enabled=self.bf16)
            )
            scores = self.call(tokens[:, :-1]).float().flatten(0, 1)
            return nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())

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
            self.after_first_backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss)
        return loss

    def state(self) -> Row:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.state(),
            "random": checkpoint.rng_states(),
            "losses": list(self.losses),
        }

    def restore(self, state: Row) -> None:
        """Go on from there."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.data.restore(state["data"])
        self.losses = list(state["losses"])
        checkpoint.set_rng_states(state["random"])

    def digest(self) -> str:
        """SHA-256 of everything that decides what comes next, and of what came."""
        return checkpoint.fingerprint(self.state())


def warm(spec: Row) -> None:
    """One step of the smallest model: what torch imports at its first optimizer step (70 MB of
    its compiler, 2.13) and a GPU's context are then no part of what is measured, and cannot
    fail under a limit.
    """
    Run({"dropout": 0.0, **spec, **SMALLEST, "recompute": True}).step()


def trained(
    spec: Row, kind: Callable[[Row], Run] = Run
) -> Generator[Row, None, tuple[Run, Row]]:
    """Make all steps of a training. Returns the run, and a row with its peaks of memory, whether it
    is the same training as the reference, and its largest relative error.
    """
    peak = Peak(torch, spec["device"])
    run = kind(spec)
    figures: list[float] = []

    def keep_norm() -> None:
        gradients = [parameter.grad for parameter in run.model.parameters()]
        norms = [
            gradient.double().norm() for gradient in gradients if gradient is not None
        ]
        figures.append(float(torch.stack(norms).norm()))

    run.after_first_backward = keep_norm
    for step in range(spec["steps"]):
        yield {"event": "step", "step": step + 1, "loss": run.step()}
    peaks = peak.figures()  # what follows is no part of the training
    equal, worst = compared(run, [*figures, *run.losses], spec)
    return run, {
        **peaks,
        "equal": equal,
        "worst": worst,
        "tolerance": TOLERANCE[run.bf16],
    }


def compared(run: Run, figures: Sequence[float], spec: Row) -> tuple[str, float]:
    """Against the result that the reference keeps here: ``bitwise``, ``within tolerance``,
    ``no`` or ``not applicable``; and the largest relative error of ``figures``.
    """
    kept = Path(spec["folder"]) / f"{REFERENCE}.pt"
    ends = [parameter.detach().cpu() for parameter in run.model.parameters()]
    if spec["name"] == REFERENCE:
        torch.save({"figures": figures, "ends": ends}, kept)
    if spec["name"] == REFERENCE or not kept.exists():
        return "not applicable", 0.0
    reference = torch.load(kept, map_location="cpu", weights_only=True)
    both = list(zip(figures, reference["figures"]))  # noqa: B905 -- Python 3.9 has no strict
    if figures == reference["figures"] and all(
        map(torch.equal, ends, reference["ends"])
    ):
        return "bitwise", 0.0
    errors = [abs(figure - other) / abs(other) for figure, other in both]
    # Written so that a NaN is not within it.
    if all(error <= TOLERANCE[run.bf16] for error in errors):
        return "within tolerance", max(errors)
    return "no", max(errors)


def in_words(answer: Row, *says: str) -> Row:
    """The answer with what there is to say of it, its largest error included where there is one."""
    errors = []
    if answer["equal"] in ("within tolerance", "no"):
        errors.append(
            f"largest error {answer['worst']:.0e} of {answer['tolerance']:.0e}"
        )
    return {**answer, "says": "; ".join([*says, *errors])}

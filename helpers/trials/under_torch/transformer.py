"""A small transformer, its data, and one training of it, which all ways to train and the workload
"training" use.

A step is the same for every way: draw a batch, compute the gradients of its mean loss, and make one
step of AdamW. The ways differ in how they compute the gradients.

A training is bitwise equal to that on a single device if every loss, the norm of the gradients in
the first step, and every parameter at the end are. With sums in another order it cannot be; then
each loss and the norm must be within TOLERANCE of the value there.
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
"""The largest relative error of a training in float32 (False), and with bfloat16 (True).

float32 rounds at 6e-8 and sums some 1,000 terms here; bfloat16 rounds at 4e-3. A piece that is
lost, doubled or wrongly weighted shows as 1e-2 or more.
"""
REFERENCE = "single"
"""The name of the way that trains on a single device; its results are kept for the others."""
Answer = Generator[Row, None, Row]
"""A way to train: it yields a row for each step, and returns its results."""
SAMPLES = 256
"""Sequences to learn: enough that a batch of 16 is drawn in another order for many steps."""
POSITION_BASE = 10_000.0
"""The longest wave of the positions is 2 pi times this (Attention Is All You Need, 3.5)."""
SMALLEST = {
    "vocab": 8,
    "width": 8,
    "layers": 1,
    "heads": 1,
    "length": 4,
    "batch": 2,
    "pieces": 1,
}
"""The smallest shape of the model, for a step before the measurement (``warm``)."""


class Embedding(nn.Module):
    """Makes vectors of tokens, and adds sines and cosines of the position (Attention Is All You
    Need, 3.5), which have no parameters, so that any length will do.
    """

    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.tokens(tokens)  # (batch, length, width)
        length, width = vectors.shape[1:]
        slowdown = -math.log(POSITION_BASE) / width
        speed = torch.exp(torch.arange(0, width, 2) * slowdown)
        angle = torch.arange(length)[:, None] * speed
        return vectors + torch.cat([angle.sin(), angle.cos()], 1).to(vectors)


class Block(nn.Module):
    """Causal self-attention and a network of two layers, each with a residual connection. Attention
    is written out: torch's fused kernels are not all deterministic.
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
        # Each of the three is (batch, head, position, width of a head).
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        # True where the column is a later position than the row, which must not be seen.
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        # In one expression, so that no name keeps a tensor longer than autograd does.
        mixed = self.dropout(weights.masked_fill(later, float("-inf")).softmax(-1)) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        widened = nn.functional.gelu(self.up(self.between(x)))
        return x + cast(torch.Tensor, self.dropout(self.down(widened)))


class Transformer(nn.Module):
    """A language model: an embedding, blocks, and a linear layer. With ``recompute`` the
    activations within a block are computed again in the backward pass.
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
    """Sequences (``rows``) that follow a rule which can be learnt.

    ``order`` has the indices of all rows in the order in which they are drawn, and ``position`` is
    how many of them were drawn. ``state`` has what decides the next batches; the rows are not in
    it, as the seed gives the same ones again.
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
        """A matrix with ``count`` rows, each a sequence of ``length`` + 1 tokens: the model reads
        all but the last, and predicts all but the first (``Run.loss``).

        The first token is random. Each other one is 3 times the token before it plus 1, or, by a
        coin toss, plus 2, modulo the vocabulary: the model can learn the rule, never the coin.
        """
        columns = [torch.randint(vocab, (count,), generator=self.generator)]
        for _ in range(length):
            chance = torch.randint(2, (count,), generator=self.generator)
            columns.append((3 * columns[-1] + 1 + chance) % vocab)
        return torch.stack(columns, 1)

    def next(self) -> torch.Tensor:
        """The indices of the next batch's sequences; a new order begins if fewer than a batch are
        left of the present one, and those are not drawn.
        """
        if self.position + self.batch > len(self.order):
            self.order = torch.randperm(len(self.rows), generator=self.generator)
            self.position = 0
        self.position += self.batch
        return self.order[self.position - self.batch : self.position]

    def state(self) -> Row:
        """The state from which the same batches follow."""
        generator = self.generator.get_state()
        return {"generator": generator, "order": self.order, "position": self.position}

    def restore(self, state: Row) -> None:
        """Go on from a state."""
        self.generator.set_state(state["generator"])
        self.order = state["order"]
        self.position = state["position"]


class Run:
    """One training: its model, optimizer, data, and every loss so far.

    Ways to train change ``prepared`` and ``forward_backward``. ``call`` is the prepared model, and
    ``pieces`` the number of parts into which a batch is cut (gradient accumulation).
    ``after_first_backward`` is called when the first gradients are there.
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
            self.model.parameters(),
            lr=1e-3,  # its default
        )
        self.data = Data(spec)
        self.losses: list[float] = []
        self.after_first_backward: Callable[[], None] = lambda: None

    def prepared(self, model: nn.Module) -> nn.Module:
        """What is called in a step: the model, or a wrapper of it."""
        return model

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean loss of predicting each token by those before it."""
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
        """Compute the gradients of the mean loss of ``tokens``, in ``pieces`` pieces, and return
        that loss. Each piece is weighted by its share of the samples.
        """
        total = torch.zeros((), device=self.device)
        for part in tokens.chunk(self.pieces):
            loss = self.loss(part) * (len(part) / len(tokens))
            loss.backward()
            total += loss.detach()
        return float(total)

    def step(self) -> float:
        """Make one step, and return its loss."""
        numbers = self.data.next()
        tokens = self.data.rows[numbers].to(self.device)
        if self.spec["dropout"]:
            # Blanks one sequence by Python's random generator, so that a training which resumes
            # from a checkpoint without that generator's state is found out.
            tokens[random.randrange(len(tokens))] = 0
        loss = self.forward_backward(tokens)
        if not self.losses:
            self.after_first_backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss)
        return loss

    def state(self) -> Row:
        """All that decides how the training goes on, and the losses so far."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.state(),
            "random": checkpoint.rng_states(),
            "losses": list(self.losses),
        }

    def restore(self, state: Row) -> None:
        """Go on from a state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.data.restore(state["data"])
        self.losses = list(state["losses"])
        checkpoint.set_rng_states(state["random"])

    def digest(self) -> str:
        """The SHA-256 of the state."""
        return checkpoint.fingerprint(self.state())


def warm(spec: Row) -> None:
    """Make one step of the smallest model before the measurement: the modules that torch imports at
    the first optimizer step (70 MB of its compiler in 2.13) and the GPU's context are then not
    measured, and cannot fail under a limit. The step recomputes activations, so that what torch
    loads for that is not measured either.
    """
    Run({"dropout": 0.0, **spec, **SMALLEST, "recompute": True}).step()


def trained(
    spec: Row, kind: Callable[[Row], Run] = Run
) -> Generator[Row, None, tuple[Run, Row]]:
    """Make all steps of a training, yielding a row for each; ``kind`` makes the run from the spec.

    Returns the run, and a row with its peaks of memory, whether it is equal to the reference
    (``equal``, as of ``compared``), its ``worst`` relative error, and the ``tolerance``.
    """
    peak = Peak(torch, spec["device"])
    run = kind(spec)
    figures: list[float] = []

    def keep_norm() -> None:
        """Keep the norm of all gradients as the first of the figures that are compared."""
        gradients = [parameter.grad for parameter in run.model.parameters()]
        norms = [
            gradient.double().norm() for gradient in gradients if gradient is not None
        ]
        figures.append(float(torch.stack(norms).norm()))

    run.after_first_backward = keep_norm
    for step in range(spec["steps"]):
        yield {"event": "step", "step": step + 1, "loss": run.step()}
    peaks = peak.figures()  # before the comparison, which takes memory, too
    equal, worst = compared(run, [*figures, *run.losses], spec)
    return run, {
        **peaks,
        "equal": equal,
        "worst": worst,
        "tolerance": TOLERANCE[run.bf16],
    }


def compared(run: Run, figures: Sequence[float], spec: Row) -> tuple[str, float]:
    """Compare a run with the results of the reference, which lie in a file of the spec's folder.

    Returns (bitwise, within tolerance, no, or not applicable; the largest relative error of
    ``figures``). ``figures`` are the norm of the first gradients and every loss. "Not applicable"
    is for the reference itself, whose results are saved here, and for a folder without a reference.
    """
    of_reference = Path(spec["folder"]) / f"{REFERENCE}.pt"
    ends = [parameter.detach().cpu() for parameter in run.model.parameters()]
    if spec["name"] == REFERENCE:
        torch.save({"figures": figures, "ends": ends}, of_reference)
    if spec["name"] == REFERENCE or not of_reference.exists():
        return "not applicable", 0.0
    reference = torch.load(of_reference, map_location="cpu", weights_only=True)
    both = list(zip(figures, reference["figures"]))  # noqa: B905 -- Python 3.9 has no strict
    same_ends = all(map(torch.equal, ends, reference["ends"]))
    if same_ends and figures == reference["figures"]:
        return "bitwise", 0.0
    errors = [abs(figure - other) / abs(other) for figure, other in both]
    # A NaN is never within the tolerance.
    if all(error <= TOLERANCE[run.bf16] for error in errors):
        return "within tolerance", max(errors)
    return "no", max(errors)


def in_words(answer: Row, *says: str) -> Row:
    """The answer with ``says``: these words, and its largest error if it is not bitwise equal."""
    errors = []
    if answer["equal"] in ("within tolerance", "no"):
        errors.append(
            f"largest error {answer['worst']:.0e} of {answer['tolerance']:.0e}"
        )
    return {**answer, "says": "; ".join([*says, *errors])}

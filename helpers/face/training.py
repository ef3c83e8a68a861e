"""Ways to train with less memory, run on this machine and compared with a single device."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.tell.shown import Shown
from helpers.trials import training, training_view
from helpers.trials.interpreter import torch_interpreter


class TrainingPaths(Result):
    """Ways to train that ran here: the memory and time of each, and whether it computes the same.

    ``results`` has them as data, the training on a single device first; sizes are bytes.
    """

    def __init__(self, results: Sequence[training.PathResult]) -> None:
        self.results = results

    @property
    def view(self) -> Shown:
        return training_view.same_table(self.results)

    @property
    def costs(self) -> Shown:
        """The memory that each way took beyond that of its process at the start, and
        its seconds.
        """
        return training_view.cost_table(self.results)

    def verdict(self) -> Answer:
        """The verdict: which ways finish and are the same training, and the one next step."""
        return Answer(training_view.verdict_on_training(self.results), sources=False)


def training_paths(
    paths: Sequence[str] = training.PATHS,
    *,
    device: str = "cpu",
    shape: str = "",
    seed: int = 7,
) -> TrainingPaths:
    """Train a small transformer on this machine in each of the named ways, in child processes.

    ``device`` is ``cpu`` or ``cuda``; ``shape`` the model's size, by default small on the CPU and
    medium on a GPU; ``seed`` makes weights and data. Raises ValueError for an unknown name.
    """
    results = training.paths(
        torch_interpreter(), paths, device=device, shape=shape, seed=seed
    )
    return TrainingPaths(results)

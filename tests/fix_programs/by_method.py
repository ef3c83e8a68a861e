"""What a run keeps is read by a method of its own, after the run was put away."""

import torch

torch.manual_seed(0)


class Trial:
    def __init__(self):
        self.net = torch.nn.Linear(4, 4)
        self.grade = 0.0

    def fit(self):
        self.grade = float(self.net(torch.ones(1, 4)).sum())

    def answer(self):
        return float(self.net(torch.zeros(1, 4)).sum())


trials = []
for number in range(4):
    trial = Trial()
    trial.fit()
    trials.append(trial)
    print(f"{trial.grade:.9e}")
print([f"{other.answer():.9e}" for other in trials])

"""What a rehearsed program's values hang on is computed along: tried on a torch of this machine, on the processor."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.look import cards
from helpers.rehearse import rehearsal, run, torches

ROOT = Path(__file__).parents[1]
ALONG = """
import ctypes, torch
from types import SimpleNamespace as Row
from helpers.rehearse.under_torch import result_sizes, values

device = Row(fake_zero=lambda at, n: ctypes.memset(at, 0, n))
along = result_sizes.ShadowComputation(torch, Row(coming=[], later=[], beside="", device=device), "typical")
along.on_device = lambda one: isinstance(one, torch.Tensor) and type(one).__torch_dispatch__ == along.plain
ops, place = torch.ops.aten, result_sizes.place_of
drawn = along.run(ops.randint.low, (5, 9, [6]), {})
long = along.run(ops.randn.default, ([4, 32000],), {})
mask = along.run(ops.ones_like.default, (long,), {"dtype": torch.long})
lengths = along.run(ops.sum.dim_IntList, (mask, [1]), {})
print(drawn.tolist(), lengths.tolist(), [place(one) in along.unknown for one in (drawn, long, mask, lengths)])

masks, index = torch.tensor([True, False, True]), torch.tensor([0, 1])
for at in ([masks], [masks, index]):  # a number at one mask is filled in without a count, at more it is counted
    given = torch.zeros(3, 2), at, torch.tensor(1.0)
    along.before(result_sizes.Call(ops.index_put_.default, "masks", given, {}, []), False)
    print(*along.witness.coming)
    along.witness.coming.clear()

class Stands(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*(getattr(one, "inner", one) for one in args), **kwargs or {}))

made = along.made_unknown(Stands(torch.ones(3)))
print(made.inner.tolist(), place(made.inner) in along.unknown, along.witness.beside)
seen = []
along.kind = lambda func: seen.append(str(func)) or "views"
values.ShadowComputation = lambda *_: along
values.start(torch, along.witness)
print((made + 1).inner.tolist(), "aten.add.Tensor" in seen)

class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(0)

leaf = torch.ones(3, requires_grad=True)
Own.apply(leaf).sum().backward()
print("aten.flip.default" in seen, seen.count("aten.expand.default"), along.unknown.clear())
slope = torch.autograd.grad((leaf * leaf).sum(), leaf)[0]
same = torch.ones(())
print(slope.tolist(), torch.autograd.grad(leaf.sum(), leaf, same)[0].tolist(), same.item())
"""


def test_long_masks_tensors_that_stand_for_others_and_a_programs_own_backward_are_computed_along():
    pytest.importorskip("torch")
    argv = [sys.executable, "-c", ALONG]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    said = ended.stdout.splitlines()
    assert said[0] == f"{[5] * 6} {[32000] * 4} [True, True, False, False]", ended.stderr
    assert said[1:3] == ["", "(2, True)"], ended.stderr
    said = said[2:]
    assert said[1:3] == ["[0.0, 0.0, 0.0] True ", "[1.0, 1.0, 1.0] True"], ended.stderr
    # What a program wrote of the backward pass itself is computed along, what is torch's own of it is not.
    assert said[3:] == ["True 0 None", "[0.0, 0.0, 0.0] [1.0, 1.0, 1.0] 1.0"], ended.stderr


SHADOW = """
import ctypes, torch
from types import SimpleNamespace as Row
from helpers.rehearse.under_torch import result_sizes, values

device = Row(fake_zero=lambda at, n: ctypes.memset(at, 0, n))
witness = Row(coming=[], later=[], beside="", device=device, compiled=set())
shadow = result_sizes.ShadowComputation(torch, witness, "most")
shadow.on_device = lambda value: isinstance(value, torch.Tensor) and shadow.are_plain((value,))
values.ShadowComputation = lambda *_: shadow
operators = []
kind = shadow.kind
shadow.kind = lambda operator: operators.append(str(operator)) or kind(operator)
values.start(torch, witness)
x = torch.ones(4)
"""

HIGHER_ORDER = """
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op
print(cond_op(x.sum() > 3, lambda x: x + 1, lambda x: x - 1, (x,)).tolist(), "aten.add.Tensor" in operators)
count, doubled = while_loop_op(lambda n, x: n < 5, lambda n, x: (n + 1, x * 2), (torch.tensor(0), x), ())
print(count.item(), doubled.tolist())

chosen = []
leaf = torch.arange(8.0, requires_grad=True)
square = leaf * leaf
square.register_hook(lambda gradient: chosen.append(shadow.count(gradient > 3)))
square.grad_fn.register_prehook(lambda gradients: chosen.append(shadow.count(gradients[0] > 3)))
leaf.register_post_accumulate_grad_hook(lambda leaf: chosen.append(shadow.count(leaf > 3)))
square.sum().backward()
print(chosen)

kept = []
def unpack(tensor):
    kept.append(shadow.count(tensor > 3))
    return tensor
with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
    sine = leaf.sin()
shadow.unknown.add(result_sizes.place_of(leaf))
sine.sum().backward()
print(kept)

query, key = torch.ones(2, 4, 256, 8), torch.ones(2, 2, 256, 8)
witness.compiled.add(1)
attend = torch.ops.higher_order.flex_attention
out, logsumexp, _ = attend(query, key, key, None, (None,) * 13, 1.0, {}, (), ())
print(tuple(out.shape), logsumexp.dtype, tuple(logsumexp.shape), result_sizes.place_of(out) in shadow.unknown)
"""


def printed_along(program):
    """The lines that a program prints whose values are computed along, with torch.compile off."""
    pytest.importorskip("torch")
    argv = [sys.executable, "-c", SHADOW + program]
    off = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}
    ended = subprocess.run(argv, cwd=ROOT, env=off, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


def test_functions_that_an_operator_or_a_backward_pass_calls_are_computed_along():
    """torch.cond takes the branch of its values, a while_loop ends, a gradient that a hook gets is unknown
    (and taken at the bound), a parameter is not; compiled flex_attention holds no scores.
    """
    assert printed_along(HIGHER_ORDER) == [
        "[2.0, 2.0, 2.0, 2.0] True",
        "5 [32.0, 32.0, 32.0, 32.0]",
        "[(8, False), (8, False), (4, True)]",
        "[(8, False)]",
        "(2, 4, 256, 8) torch.float32 (2, 4, 256) True",
    ]


CAPTURED = """
import os
weight = torch.ones(4, requires_grad=True)
torch.cond(x.sum() > 3, lambda x: x * weight, lambda x: x - 1, (x,)).sum().backward()
print(tuple(weight.grad.shape), "aten.mul.Tensor" in operators, os.environ["TORCHDYNAMO_DISABLE"])

class Chooses(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 3, lambda x: x + 1, lambda x: x - 1, (x,))
print(torch.export.export(Chooses(), (x,)).module()(x).tolist())

around = values.AroundMode(torch, torch.utils._python_dispatch._get_current_dispatch_mode())
operators.clear()
index, (double, _), operator = around.within_functions(
    "switch", (torch.tensor(1), [lambda x: x * 2, None], torch.ops.aten.add.Tensor)
)
with torch.utils._python_dispatch._disable_current_modes():
    print(index, double(x).tolist(), "aten.mul.Tensor" in operators, operator)
"""


def test_what_torch_reads_of_a_function_gives_gradients_to_what_the_function_closes_over():
    """torch.cond and its like have torch.compile read their branches, also where compiling is off; a
    list of branches is run within, torch's own operators are left as they are.
    """
    assert printed_along(CAPTURED) == [
        "(4,) True 1",
        "[2.0, 2.0, 2.0, 2.0]",
        "1 [2.0, 2.0, 2.0, 2.0] True aten.add.Tensor",
    ]


# Under the real allocator: CASEBOOK_ORACLE_TORCH names a folder with a CUDA wheel of torch (pip install --no-deps --target).

DECIDES = """
import torch
count, steps = torch.zeros(2, dtype=torch.long, device="cuda"), 0
while not (count >= 5).all():
    count += 1
    steps += 1
known = torch.arange(64, device="cuda") > 50
weight = torch.randn(300, 300, device="cuda", requires_grad=True)
chosen = weight[weight > 0]
chosen.sum().backward()
top = torch.randn(4, 32000, device="cuda").topk(50)
half = torch.fft.rfft(torch.linalg.inv(torch.randn(8, 8, device="cuda")))
with torch.inference_mode():
    counted = torch.tensor([0.0, 0.0, 1.0], device="cuda").long().unique(return_counts=True)[1]
    torch.full((1 << 18,), float("nan")).cuda()
    large = torch.randn(1 << 18, device="cuda").view(512, 512)
    assert large.cpu().isfinite().all() and large[3].sum().item() == 0
assert counted.tolist() == [2, 1]
print(steps, known.nonzero().shape[0], len(weight[known[:1].expand(300)]), len(chosen))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    "CASEBOOK_ORACLE_TORCH" not in os.environ, reason="CASEBOOK_ORACLE_TORCH names no torch folder"
)
@pytest.mark.parametrize(("values", "chosen"), [("least", 0), ("typical", 45000), ("most", 90000)])
def test_what_values_decide_ends_and_unknown_sizes_stand_at_their_bound(values, chosen, tmp_path):
    torch = torches.read_torch(Path(os.environ["CASEBOOK_ORACLE_TORCH"]))
    (tmp_path / "decides.py").write_text(DECIDES)
    shell = ["sh", "-c", f"cd {tmp_path} && python decides.py"]
    done = run.rehearse(
        shell,
        cards.find_card("4090"),
        tmp_path / "out.pickle",
        torch=replace(torch, is_users=False),
        cache=tmp_path / "cache",
        python=sys.executable,
        log=tmp_path / "log",
        limits=rehearsal.RehearsalLimits(values=values),
    )
    assert done.fits and not done.exact, (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().split()[-4:] == ["5", "13", "0", str(chosen)]
    assert "decides.py:9 <module>" in done.trust[0] and "nonzero" in done.trust[0]


PRINTED = """
import sys, torch
from helpers.rehearse.under_torch.witness import reading_line

select = torch.masked_select

def selecting(*args):
    print(reading_line(sys._getframe(1)))
    return select(*args)

torch.masked_select = selecting
repr(torch.rand(3))
torch.masked_select(torch.rand(3), torch.ones(3, dtype=torch.bool))
torch.set_printoptions(threshold=float("inf"))
repr(torch.rand(3))
"""


def test_a_program_that_prints_a_tensor_has_no_size_that_values_decide():
    pytest.importorskip("torch")
    lines = subprocess.run(
        [sys.executable, "-c", PRINTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.splitlines()
    printed, selected, printed_whole = lines
    assert "_tensor_str.py" in printed
    assert "_tensor_str.py" not in selected
    assert "_tensor_str.py" not in printed_whole


EXPORT = """
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
with torch.inference_mode():  # in which compounds reach the mode whole
    made = torch.export.export(net, (torch.randn(2, 3, 8, 8),))
    print(*made.module()(torch.randn(2, 3, 8, 8)).shape)
"""


def test_a_model_is_exported_in_inference_mode_as_without_a_rehearsal():
    assert printed_along(EXPORT) == ["2 4 6 6"]

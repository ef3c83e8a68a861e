"""Expressions that make a large tensor are written as others with the same result."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("libcst")
import torch
from test_fix import GIB, program

from helpers.fix.program import changed_files
from helpers.fix.rewrites import rewritten_expressions
from helpers.judge.program_facts import Holding

TOP = """import math
import torch
import torch.nn.functional as F
from torch import nn

"""
SETTING = """
torch.manual_seed(0)
q, g = torch.randn(6, 8), torch.randn(7, 8)
head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 5))
conv = nn.Conv1d(6, 6, 3, padding=1)
attention = nn.MultiheadAttention(8, 2)
drop = nn.Dropout(0.0)
h = torch.randn(4, 6, 8)
rows, cols = torch.tensor([0, 2, 3]), torch.tensor([5, 1, 1])
keep = torch.rand(4, 6) > 0.5
query, key, value = torch.randn(3, 2, 4, 6, 8)
mask = torch.rand(6, 6) > 0.3
mask[:, 0] = True
bias = torch.randn(6, 6)
labels = torch.tensor([0, 4, 1, 2])
logits = torch.randn(4, 5)
"""


def rewritten(text, **facts):
    """The texts of a program of one file, one for each rewrite."""
    own = program(TOP + SETTING + text, **facts)
    return [
        changed_files(own, change)["train.py"].decode() for change in rewritten_expressions(own)
    ]


def result_of(text):
    names = {}
    exec(text, names)
    return names["result"]


ALIKE = [
    ("result = ((q[:, None] - g[None]) ** 2).sum(-1).sqrt()", "torch.cdist(q, g)"),
    ("result = (q.unsqueeze(1) - g.unsqueeze(0)).pow(2).sum(dim=2)", "torch.cdist(q, g) ** 2"),
    ("d = q[:, None, :] - g\nresult = torch.norm(d, dim=-1)", "torch.cdist(q, g)"),
    ("result = (g[None] - q[:, None]).abs().sum(-1)", "torch.cdist(q, g, p=1)"),
    ("result = torch.square(h[:, :, None] - h[:, None]).mean(-1)", "torch.cdist(h, h) ** 2 / h"),
    ("result = F.cosine_similarity(q[:, None], g[None], dim=-1)", "F.normalize(q, dim=-1) @"),
    ("d = q[:, None] - g\nresult = (d * d).sum(-1) ** 0.5", "torch.cdist(q, g)"),
    ("result = torch.softmax(q @ g.T, -1) @ g", "dot_product_attention(q, g, g, scale=1.0)"),
    ("result = head(h)[rows, cols]", "head(h[rows, cols])"),
    ("result = head(h)[:, -1, :]", "head(h[:, -1, :])"),
    ("out = head(h)\nout = out[keep]\nresult = out.exp()", "head(h[keep])"),
    ("result = F.log_softmax(head(h), dim=-1)[:, 2]", "head(h[:, 2]).log_softmax(-1)"),
    ("result, _ = attention(h, h, h)", "attention(h, h, h, need_weights=False)"),
    ("result = attention(h, h, h)[0]", "attention(h, h, h, need_weights=False)[0]"),
    (
        "w = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(8)\n"
        "if mask is not None:\n    w = w.masked_fill(mask == 0, -1e9)\n"
        "w = drop(F.softmax(w, dim=-1))\nresult = torch.matmul(w, value)",
        "attn_mask=mask != 0 if mask is not None else None, dropout_p=drop.p",
    ),
    (
        "w = query @ key.mT\nw *= 0.3\nw.masked_fill_(~mask, float('-inf'))\n"
        "result = w.softmax(-1) @ value",
        "F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)",
    ),
    (
        "w = torch.softmax(query @ key.transpose(2, 3) + bias, -1)\nresult = w @ value",
        "attn_mask=bias, scale=1.0",
    ),
    (
        "w = torch.where(mask, query @ key.mT * 0.5, -torch.inf)\nresult = w.softmax(-1) @ value",
        "attn_mask=mask, scale=0.5",
    ),
]


@pytest.mark.parametrize(("text", "wanted"), ALIKE)
def test_an_expression_is_written_as_one_that_makes_no_large_tensor(text, wanted):
    (after,) = rewritten(text)
    assert wanted in after
    assert wanted not in text
    torch.testing.assert_close(result_of(after), result_of(TOP + SETTING + text))


@pytest.mark.parametrize(
    "text",
    [
        "out = conv(h)[:, -1]",  # no layer of positions
        "out = head(h)[..., :2]",  # of classes
        "out = head(h)\nlast = out[:, -1]\nprint(out)",
        "w = (query @ key.mT).softmax(-1)\nresult = w @ value\nprint(w)",
        "w = query @ key.mT\nw = conv(w)\nresult = w.softmax(-1) @ value",
        "w = (query @ key.mT).masked_fill(mask, 0.5)\nresult = w.softmax(-1) @ value",
        "w = query @ key.mT\nkey = value\nquery = key\nresult = w.softmax(-1) @ query + query",
        "d = q[:, None] - g\nq = q + 1\nresult = d.norm(dim=-1) + d.sum()",
        "y, weights = attention(h, h, h)\nprint(weights)",
    ],
)
def test_what_else_is_read_or_is_no_such_expression_stays(text):
    assert rewritten(text) == []


def test_what_holds_the_memory_is_rewritten_first():
    text = "a = head(h)[:, -1]\n\nb = torch.norm(q[:, None] - g[None], dim=-1)\n"
    line = (TOP + SETTING + text).splitlines().index("b = " + text.split("b = ")[1].strip()) + 1
    first, second = rewritten(text, holding=(Holding(f"train.py:{line} <module>", GIB),))
    assert "cdist" in first and "cdist" not in second

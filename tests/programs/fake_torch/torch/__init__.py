"""Stands in for torch in a child under test: the real one, with the damage that FAKE_TORCH, a list of words, names."""

import os
import pathlib
import resource
import signal
import sys
import time

WORDS = os.environ.get("FAKE_TORCH", "").split()

sys.path.remove(str(pathlib.Path(__file__).resolve().parents[1]))
del sys.modules["torch"]
import torch  # noqa: E402


def odd_product(a, b, real=torch.matmul):
    if "hangs-in-product" in WORDS and a.dtype == torch.float32:
        time.sleep(600)
    product = real(a, b)
    if "wrong-product" in WORDS and a.dtype == torch.bfloat16:
        product[3, 5] += 64
    return product


def dies(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGSEGV)


torch.matmul = odd_product
if "dies-in-network" in WORDS:
    torch.nn.functional.cross_entropy = dies
if "little-address-space" in WORDS:
    status = open("/proc/self/status").read()
    size_bytes = int(status.partition("VmSize:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + (600 << 20), resource.RLIM_INFINITY))

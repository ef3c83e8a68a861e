"""Stands in for torch in a child under test. FAKE_TORCH, a list of words, says what is odd about it.

Without a word it becomes the real torch. Damage is done to the real one; a fake GPU is the CPU under the name of cuda.
"""

import os
import pathlib
import resource
import signal
import sys
import time
import types

WORDS = os.environ.get("FAKE_TORCH", "").split()


def killed_by(name):
    os.kill(os.getpid(), getattr(signal, name))


if "no-library" in WORDS:
    raise OSError("libamdhip64.so.6: cannot open shared object file: No such file or directory")
if "dies-at-import" in WORDS:
    killed_by("SIGILL")

sys.path.remove(str(pathlib.Path(__file__).resolve().parents[1]))
del sys.modules["torch"]
import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

MIB = 1 << 20


def odd_product(a, b, real=torch.matmul):
    if "hangs-in-product" in WORDS and a.dtype == torch.float32:
        time.sleep(600)
    product = real(a, b)
    if "wrong-product" in WORDS and a.dtype == torch.bfloat16:
        product[3, 5] += 64
    return product


def dies(*args, **kwargs):
    killed_by("SIGSEGV")


def raises(*args, **kwargs):
    raise RuntimeError(
        "HIP error: invalid device function\nCompile with TORCH_USE_HIP_DSA to enable device-side assertions."
    )


torch.matmul = odd_product
if "dies-in-network" in WORDS:
    torch.nn.functional.cross_entropy = dies
if "raises-in-network" in WORDS:
    torch.nn.functional.cross_entropy = raises
if "little-address-space" in WORDS:
    size = (
        int(
            next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]
        )
        * 1024
    )
    resource.setrlimit(resource.RLIMIT_AS, (size + 600 * MIB, resource.RLIM_INFINITY))


class CudaIsTheCpu(TorchFunctionMode):
    """Every device argument that names cuda becomes the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def plain(value):
            return (
                "cpu"
                if isinstance(value, (str, torch.device)) and str(value).startswith("cuda:")
                else value
            )

        kwargs = {
            name: plain(value) for name, value in (kwargs or {}).items() if name != "pin_memory"
        }
        return function(*map(plain, args), **kwargs)


if "gpu" in WORDS:
    # A box with two cards; the variable picks among them, and what was set as a limit is printed.
    cards = [
        types.SimpleNamespace(
            name="Fake XT",
            total_memory=20 << 30,
            is_integrated=0,
            pci_domain_id=0,
            pci_bus_id=bus,
            pci_device_id=0,
        )
        for bus in (0x03, 0x83)
    ]
    visible = [cards[int(word)] for word in os.environ.get("HIP_VISIBLE_DEVICES", "0,1").split(",")]
    torch.version.hip, torch.version.cuda = "6.3.0", None
    cuda = torch.cuda
    cuda.init = cuda.empty_cache = cuda.synchronize = cuda.reset_peak_memory_stats = lambda *args: (
        None
    )
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.device_count = lambda: len(visible)
    cuda.get_device_properties = lambda index: visible[index]
    cuda.mem_get_info = lambda index=0: (19 << 30, 20 << 30)
    cuda.max_memory_allocated, cuda.max_memory_reserved = (
        (lambda index: 8 * MIB),
        (lambda index: 20 * MIB),
    )
    cuda.can_device_access_peer = lambda here, there: here < there
    cuda.set_per_process_memory_fraction = lambda fraction, index: print(
        "limit", round(fraction * (20 << 30)) // MIB, "MiB"
    )
    torch.Tensor.pin_memory = lambda self: self.clone()
    CudaIsTheCpu().__enter__()
    if "small-limit" in WORDS:

        def refuses(*args, **kwargs):
            raise torch.cuda.OutOfMemoryError(
                "HIP out of memory. Tried to allocate 384.00 MiB. 256.00 MiB allowed;"
            )

        torch.nn.functional.cross_entropy = refuses

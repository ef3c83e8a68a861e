"""Runs trace files on the real allocator; its Python is torch's own, with the stand-in driver. Standard library and torch only.

``worker.py OUT TRACE...`` writes OUT/NAME.jsonl: the job, one line an operation, last every statistic and the layout. Each job
has a process of its own, forked from one that has imported torch: the settings are read when CUDA is initialised, after that.
"""

import bisect
import ctypes
import json
import os
import sys
import traceback
from pathlib import Path

MALLOC_BASE = 0x100000000000
RANGE_BASE = 0x200000000000
RANGE_END = 0x400000000000  # the two arenas of device.c
STREAM_STEP = 0x1000
CHECK_EVERY = 37  # operations between two checks of the layout against the statistics
COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
    "num_sync_all_streams",
    "num_oom_rejections",
)
STATES = {
    "active_allocated": "A",
    "active_pending_free": "P",
    "active_awaiting_free": "P",
    "inactive": "I",
}
# Records of the fake driver's log that change something (device.c, L_*).
MALLOC, MALLOC_FAIL, FREE, RESERVE, UNRESERVE, CREATE, CREATE_FAIL, MAP, UNMAP = range(1, 10)


class Fake:
    """The controls that the preloaded library exports."""

    def __init__(self):
        self.library = ctypes.CDLL(None)
        if not hasattr(self.library, "fake_cuda_version"):
            raise SystemExit("the fake CUDA library is not preloaded")
        self.library.fake_cuda_used.restype = ctypes.c_ulonglong
        self.library.fake_cuda_log_drain.restype = ctypes.c_size_t
        self.library.fake_cuda_log_drain.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.buffer = (ctypes.c_ulonglong * (4 * 65536))()

    def tell(self, control, value=0):
        getattr(self.library, "fake_cuda_" + control)(ctypes.c_ulonglong(value))

    def used_bytes(self):
        return self.library.fake_cuda_used(0)

    def drain(self):
        """(kind, ordinal, address, bytes) of each driver call since the last time."""
        calls = []
        while True:
            count = self.library.fake_cuda_log_drain(self.buffer, 65536)
            words = self.buffer[: 4 * count]
            calls += [tuple(words[at : at + 4]) for at in range(0, 4 * count, 4)]
            if count < 65536:
                return calls


class Places:
    """Names for device addresses: m3 the fourth cudaMalloc, x1 the second reserved range."""

    def __init__(self):
        self.mallocs = []  # (address, size, ordinal), by address
        self.ranges = []

    def find(self, address):
        """(segment, offset in it)."""
        if RANGE_BASE <= address < RANGE_END:
            low, _, ordinal = next(
                place for place in self.ranges if place[0] <= address < place[0] + place[1]
            )
            return f"x{ordinal}", address - low
        low, size, ordinal = self.mallocs[bisect.bisect_right(self.mallocs, (address, 1 << 62)) - 1]
        assert low <= address < low + size, "an address in no cudaMalloc"
        return f"m{ordinal}", address - low

    def follow(self, calls):
        """The driver calls as the short list of a result line; the map of places is brought up to date."""
        out = []
        made = 0
        for kind, ordinal, address, size in calls:
            if kind == MALLOC:
                bisect.insort(self.mallocs, (address, size, ordinal))
                out.append(["malloc", ordinal, address - MALLOC_BASE, size])
            elif kind == MALLOC_FAIL:
                out.append(["malloc_fail", size])
            elif kind == FREE:
                self.mallocs = [place for place in self.mallocs if place[2] != ordinal]
                out.append(["free", ordinal])
            elif kind == RESERVE:
                self.ranges.append((address, size, ordinal))
                out.append(["reserve", ordinal, address - RANGE_BASE, size])
            elif kind == UNRESERVE:
                self.ranges = [place for place in self.ranges if place[2] != ordinal]
                out.append(["unreserve", ordinal])
            elif kind == CREATE:
                made += 1
            elif kind == CREATE_FAIL:
                out.append(["create_fail", made, size])
                made = 0
            elif kind in (MAP, UNMAP):
                name, offset = self.find(address)
                entry = ["map" if kind == MAP else "unmap", int(name[1:]), offset, size]
                if out and out[-1][:2] == entry[:2] and out[-1][2] + out[-1][3] == offset:
                    out[-1][3] += size  # neighbouring chunks are joined
                else:
                    out.append(entry)
                made = 0 if kind == MAP else made
        return out


class Runner:
    """One job's allocator: operations in, result lines out."""

    def __init__(self, job):
        import torch

        os.environ.update(
            FAKE_VRAM_BYTES=str(job["vram"]),
            FAKE_FOREIGN_BYTES=str(job.get("foreign", 0)),
            FAKE_ADDR_POLICY=job.get("policy", "firstfit"),
            PYTORCH_CUDA_ALLOC_CONF=job["conf"],
        )
        self.torch = torch
        self.fake = Fake()
        self.places = Places()
        self.live = {}
        self.pools = set()
        self.graphs = {}
        self.begun = None
        header = Path(torch.__file__).parent / "include/c10/cuda/CUDACachingAllocator.h"
        self.marks = "markCaptureBegin" in header.read_text()
        torch.cuda.init()  # here the settings are read
        self.fake.drain()
        if job.get("fraction") is not None:
            torch.cuda.set_per_process_memory_fraction(job["fraction"], 0)

    def alloc(self, op):
        """The address, or 0 for no bytes. ``via: tensor`` makes a tensor, which record_stream needs."""
        if op.get("pool"):
            return self.alloc_private(op)
        if op.get("via") == "generator":
            return self.alloc_generator(op)
        stream = op.get("stream", 0) * STREAM_STEP
        if op.get("via") == "tensor":
            with self.torch.cuda.stream(self.stream(op.get("stream", 0))):
                tensor = self.torch.empty(op["size"], dtype=self.torch.uint8, device="cuda:0")
            self.live[op["id"]] = tensor
            return tensor.data_ptr()
        self.live[op["id"]] = self.torch._C._cuda_cudaCachingAllocator_raw_alloc(op["size"], stream)
        return self.live[op["id"]]

    def alloc_generator(self, op):
        """The state of the random numbers, two tensors, which torch 2.13 allocates as it begins a capture and keeps with the
        graph: the first of them begins the one that the next allocation ends, and both hold it."""
        if self.begun is None:
            pool, stream = op["for"]
            self.begun = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.stream(self.stream(stream)):
                self.begun.capture_begin(pool=(0, pool))
        self.live[op["id"]] = self.begun
        return 0

    def alloc_private(self, op):
        """As ``alloc``, from the private pool that the operation names; the first use is held until the pool is given up.

        Releases that tell a capture from use_mem_pool (their header has markCaptureBegin) get a real one; to those before it
        is the same, and a graph of theirs would allocate the state of the random numbers, which no trace has.
        """
        calls = self.torch._C
        pool = (0, op["pool"])
        plain = {**op, "pool": 0}
        if self.marks and not op.get("mempool"):
            graph = self.begun
            self.begun = None
            with self.torch.cuda.stream(self.stream(op["stream"])):
                if graph is None:
                    graph = self.torch.cuda.CUDAGraph()
                    graph.capture_begin(pool=pool)
                    self.graphs.setdefault(op["pool"], []).append(graph)
                try:
                    return self.alloc(plain)
                finally:
                    graph.capture_end()
        older = "AllocateCurrentStreamToPool"  # torch 2.4, and the end of it in 2.6
        begin = getattr(calls, "_cuda_beginAllocateToPool", None)
        with self.torch.cuda.stream(self.stream(op.get("stream", 0))):
            (begin or getattr(calls, "_cuda_begin" + older))(0, pool)
        try:
            return self.alloc(plain)
        finally:
            end = getattr(calls, "_cuda_endAllocateToPool", None)
            (end or getattr(calls, "_cuda_end" + older))(0, pool)
            if op["pool"] in self.pools:
                calls._cuda_releasePool(0, pool)
            self.pools.add(op["pool"])

    def stream(self, number):
        """torch through 2.11 takes an ExternalStream of the handle 0 for a new one."""
        cuda = self.torch.cuda
        return cuda.ExternalStream(number * STREAM_STEP) if number else cuda.default_stream()

    def step(self, op):
        """(outcome, address of what was allocated or 0)."""
        kind = op["op"]
        torch = self.torch
        if kind == "alloc":
            try:
                return "ok", self.alloc(op)
            except torch.cuda.OutOfMemoryError:
                return "oom", 0
        if kind in ("free", "record_stream"):
            held = self.live.get(op["id"])
            if held is None:
                return "skipped", 0  # its allocation failed
            if kind == "record_stream":
                held.record_stream(self.stream(op["stream"]))
            else:
                del self.live[op["id"]]
                if isinstance(held, int) and held:
                    torch._C._cuda_cudaCachingAllocator_raw_delete(held)
        elif kind == "set_conf":
            apply = (
                getattr(torch._C, "_accelerator_setAllocatorSettings", None)
                or torch.cuda.memory._set_allocator_settings
            )
            try:
                apply(op["conf"])
            except (RuntimeError, ValueError) as error:
                return "error: " + str(error).splitlines()[0], 0
        elif kind == "empty_cache":
            self.graphs.pop(op.get("pool"), None)
            if (pool := op.get("pool")) in self.pools:
                torch._C._cuda_releasePool(0, (0, pool))
                self.pools.remove(pool)
            torch.cuda.empty_cache()
        elif kind == "set_fraction":
            torch.cuda.set_per_process_memory_fraction(op["fraction"], 0)
        elif kind == "synchronize":
            torch.cuda.synchronize()
        elif kind == "reset_peak":
            torch.cuda.reset_peak_memory_stats()
        elif kind == "foreign":
            self.fake.tell("set_foreign", op["bytes"])
        elif kind == "fail_next":
            self.fake.tell("fail_next", op["n"])
        elif kind in ("events_hold", "events_complete"):
            self.fake.tell(kind, int(op.get("on", True)))
        elif kind != "snapshot":
            raise ValueError(f"unknown operation {kind!r}")
        return "ok", 0

    def figures(self):
        """The current statistics, as a result line shows them."""
        full = self.torch._C._cuda_memoryStats(0)
        current = {
            name: value["all"]["current"]
            for name, value in full.items()
            if isinstance(value, dict) and "all" in value
        }
        return {
            "alloc": current["allocated_bytes"],
            "res": current["reserved_bytes"],
            "act": current["active_bytes"],
            "req": current["requested_bytes"],
            "isplit": current["inactive_split_bytes"],
            "n": [current[name] for name in ("allocation", "active", "segment", "inactive_split")],
            "c": [full.get(name) for name in COUNTERS],
        }

    def layout(self):
        """All segments in the order of their creation: blocks as [offset, size, requested, state]."""
        segments = []
        for segment in self.torch.cuda.memory_snapshot():
            name, offset = self.places.find(segment["address"])
            at = 0
            blocks = []
            for block in segment["blocks"]:
                assert block.get("address", segment["address"] + at) == segment["address"] + at, (
                    "blocks with gaps"
                )
                blocks.append(
                    [at, block["size"], block.get("requested_size"), STATES[block["state"]]]
                )
                at += block["size"]
            assert at == segment["total_size"], "blocks that do not fill their segment"
            segments.append(
                {
                    "seg": name,
                    "off": offset,
                    "size": at,
                    "stream": segment["stream"] // STREAM_STEP,
                    "pool": segment["segment_type"],
                    "blocks": blocks,
                }
            )
        return sorted(segments, key=lambda s: (s["seg"][0], int(s["seg"][1:]), s["off"]))

    def check(self, row, segments):
        """What must hold between the statistics, the layout and the driver's count."""
        blocks = [block for segment in segments for block in segment["blocks"]]
        assert (
            sum(segment["size"] for segment in segments) == row["res"] == self.fake.used_bytes()
        ), "reserved"
        assert sum(block[1] for block in blocks if block[3] == "A") == row["alloc"], "allocated"
        assert sum(block[1] for block in blocks if block[3] in "AP") == row["act"], "active"

    def run(self, ops):
        before = 0
        for index, op in enumerate(ops):
            outcome, address = self.step(op)
            calls = self.places.follow(self.fake.drain())
            # ``n`` of a result line is a list of counts, so what fail_next asked for has another name there.
            row = {
                **op,
                **({"count": op["n"]} if op["op"] == "fail_next" else {}),
                "i": index,
                "out": outcome,
            }
            figures = self.figures()
            if address:
                row["seg"], row["off"] = self.places.find(address)
                row["bsize"] = figures["alloc"] - before
            row.update(figures, **({"drv": calls} if calls else {}))
            if op["op"] == "snapshot":
                row["layout"] = self.layout()
            if op["op"] == "snapshot" or index % CHECK_EVERY == 0:
                self.check(row, self.layout())
            before = row["alloc"]
            yield row
        segments = self.layout()
        self.check(self.figures(), segments)
        yield {"final": dict(self.final()), "layout": segments}

    def final(self):
        """Every statistic as [current, peak, allocated, freed], by pool where there are pools."""

        def four(value):
            return [value[key] for key in ("current", "peak", "allocated", "freed")]

        for name, value in self.torch._C._cuda_memoryStats(0).items():
            if isinstance(value, dict) and "all" in value:
                yield (
                    name,
                    {pool: four(value[pool]) for pool in ("all", "small_pool", "large_pool")},
                )
            elif isinstance(value, dict) and "current" in value:
                yield name, four(value)
            elif isinstance(value, int):
                yield name, value


def results(path):
    """The result lines of one trace file; a configuration that torch refuses gives one line that says so."""
    import torch

    first, *ops = (json.loads(line) for line in Path(path).read_text().splitlines())
    yield {**first, "torch": torch.__version__, "trace": Path(path).name}
    try:
        runner = Runner(first["job"])
    except (RuntimeError, ValueError) as error:
        yield {"config_error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        return
    try:
        yield from runner.run(ops)
    except (
        RuntimeError
    ) as error:  # an assertion of torch's own, or the driver's refusal: its state is torn
        yield {"torn": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def main(out, paths):
    import torch  # noqa: F401 -- once, for every fork

    failed = 0
    for path in paths:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                lines = [json.dumps(row, separators=(",", ":")) + "\n" for row in results(path)]
                Path(out, Path(path).name).write_text("".join(lines))
                code = 0
            except BaseException as error:  # noqa: BLE001 -- a fork must never fall out of here into the parent's loop
                traceback.print_exc()
                print(
                    Path(path).stem,
                    type(error).__name__,
                    (str(error) or "no message").splitlines()[0],
                    file=sys.stderr,
                )
            os._exit(code)
        failed |= os.waitpid(pid, 0)[1]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

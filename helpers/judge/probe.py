"""What a look at a box decides by itself: can torch reach a GPU, and is its memory held by somebody who cannot be seen.

Pure: an evidence bundle in, a verdict out. A look alone cannot name the cause of an out-of-memory; where it finds no obstacle
and no unexplained memory the verdict is ``cannot-tell`` and says what would decide.
"""

from __future__ import annotations

from helpers.judge.obstacles import Obstacle, obstacles
from helpers.look import framework, ttm
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus
from helpers.look.machine import machine
from helpers.look.reading import MIB, Reading, seen, show_bytes
from helpers.run.shapes import Alternative, Cause, Evidence, Missing, NextStep, Verdict

# Firmware, page tables and a console's framebuffer belong to no process: below both of these nothing is unexplained.
UNEXPLAINED_SHARE, UNEXPLAINED_BYTES = 0.02, 512 * MIB
ROUNDING_BYTES = 2 * MIB
HOLDERS = "sudo fuser -v /dev/kfd /dev/dri/renderD* /dev/nvidia*"
MESSAGE = Missing(reading="The error message of the failing program",
                  how="run it once more and keep the whole text from 'out of memory' on")


def probe(bundle: Bundle) -> Verdict:
    """The verdict of a look. The first of these that the evidence supports: no way to a GPU, a build that cannot use it,
    memory in use without a visible holder, a TTM limit at its default on an APU; otherwise ``cannot-tell``.
    """
    found = gpus(bundle)
    return (_no_way(bundle) or _wrong_build(bundle, found) or _unexplained(bundle, found)
            or _ttm_default(bundle, found) or _nothing(bundle, found))


def _no_way(bundle: Bundle) -> Verdict | None:
    """Something stands between this process and every GPU."""
    ways = obstacles(bundle)
    if not ways:
        return None
    first = ways[0]
    cause: Cause = {"no_gpu": "other", "no_driver": "other", "no_device": "other", "variable": "config-ineffective"}.get(
        first.cause, "permission")  # type: ignore[assignment]
    step = NextStep(what="Remove what stands in the way", command=first.fix,
                    precondition="read what it changes; it is printed here and never run",
                    blast_radius="none" if first.cause == "variable" else "the user's access rights or the container's start")
    if first.cause == "no_gpu":
        step = NextStep(what="Work on the CPU, or look at a recorded box", command="python -m helpers boxes")
    return Verdict(cause=cause, confidence="confirmed", summary=f"No GPU can be used from here: {first.says}.", next_step=step,
                   evidence=[_obstacle(number, way) for number, way in enumerate(ways, 1)])


def _obstacle(number: int, way: Obstacle) -> Evidence:
    return Evidence(id=f"way-{number}", says=way.says[:1].upper() + way.says[1:],
                    reading=seen(way.cause, "text", way.path or "pci_devices", way.item))


def _wrong_build(bundle: Bundle, found: tuple[Gpu, ...]) -> Verdict | None:
    """torch is built for no GPU, or for another vendor's."""
    build = framework.framework(bundle)
    vendors = {gpu.vendor for gpu in found}
    wanted = {"rocm": "AMD", "cuda": "NVIDIA"}.get(build.build)
    if build.build == "" or not vendors or (wanted in vendors) or vendors == {"Intel"}:
        return None
    here = " and ".join(sorted(vendors))
    kind = {"cpu": "for the CPU alone"}.get(build.build, f"for {wanted}")
    return Verdict(
        cause="version-mismatch", confidence="confirmed",
        summary=f"The box has a GPU of {here}, and torch {build.version.show()} is built {kind}.",
        evidence=[Evidence(id="torch-build", reading=build.version, says=f"This torch is built {kind}"),
                  *(Evidence(id=f"gpu-{gpu.pci}", reading=gpu.name, says=f"A GPU of {gpu.vendor} is there") for gpu in found)],
        next_step=NextStep(what=f"Use an interpreter whose torch is built for {here}",
                           command="make setup TORCH_PYTHON=/path/to/python",
                           precondition="the interpreter that owns that torch is known",
                           blast_radius="none: nothing is installed into it"))


def _unexplained(bundle: Bundle, found: tuple[Gpu, ...]) -> Verdict | None:
    """Memory is in use and no process seen here accounts for it."""
    evidence, against, odd = [], [], []
    for gpu in found:
        used = next((p.used for p in gpu.pools if p.layer in ("sysfs VRAM", "nvidia-smi")), None)
        if used is None or not used.ok or not gpu.unattributed.ok:
            continue
        rest, total = int(gpu.unattributed.value or 0), int(used.value or 0)
        line = Evidence(id=f"unattributed-{gpu.pci}", reading=gpu.unattributed,
                        says=f"Of {show_bytes(total)} in use on {gpu.pci}, no process seen here holds this much")
        if rest >= UNEXPLAINED_BYTES and rest >= UNEXPLAINED_SHARE * total and not gpu.integrated:
            odd.append(gpu)
            evidence += [Evidence(id=f"used-{gpu.pci}", reading=used, says=f"In use on {gpu.pci}, by all together"), line]
        else:
            against.append(line)
    if not odd:
        return None
    blind = list(dict.fromkeys(spot for gpu in odd for spot in gpu.blind_spots))
    who = identity(bundle)
    inside = who is not None and who.init_pid_ns is False
    evidence += [Evidence(id=f"blind-{number}", reading=seen(spot, "text", "identity, device_files"),
                          says="So a holder may be there unseen") for number, spot in enumerate(blind, 1)]
    missing = [Missing(reading="The process list of the host",
                       how="there: ls /sys/class/kfd/kfd/proc; " + HOLDERS)] if blind else []
    cause: Cause = "external-holder" if inside else "stale-holder" if not blind else "cannot-tell"
    others = [c for c in ("external-holder", "stale-holder", "driver-leak") if c != cause]
    return Verdict(
        cause=cause, confidence="likely" if inside else "weak", evidence=evidence, against=against, missing=missing,
        alternatives=[Alternative(cause=other, confidence="weak") for other in others],  # type: ignore[arg-type]
        summary=f"Memory is in use on {', '.join(gpu.pci for gpu in odd)} that nothing visible from here holds"
                + (": the holder is outside this container." if inside else "."),
        next_step=NextStep(what="Find the holder where all processes can be seen, and stop it there with SIGTERM",
                           command=HOLDERS,
                           precondition="a shell on the host, outside every container",
                           blast_radius="none to look; stopping a process loses its work"))


def _ttm_default(bundle: Bundle, found: tuple[Gpu, ...]) -> Verdict | None:
    """On an APU the pool that torch sees is the TTM limit, and that is the default of half the RAM."""
    limit = next((p for p in ttm.parameters(bundle) if p.name == "pages_limit" and p.live_bytes.ok), None)
    ram = machine(bundle).ram_total
    for gpu in found:
        bank = next((p.total for p in gpu.pools if p.layer in ("KFD bank", "HSA pool", "torch") and p.total.ok), None)
        if not gpu.integrated or limit is None or bank is None or not ram.ok:
            continue
        pool, cap, half = (int(r.value or 0) for r in (bank, limit.live_bytes, ram))
        if abs(pool - cap) > ROUNDING_BYTES or abs(cap - half // 2) > ROUNDING_BYTES:
            continue
        gtt = next((p.total for p in gpu.pools if p.layer == "sysfs GTT" and p.total.ok), None)
        evidence = [Evidence(id="pool", reading=bank, says="What the compute stack may allocate from"),
                    Evidence(id="ttm", reading=limit.live_bytes, says="The TTM limit is the same"),
                    Evidence(id="ram", reading=ram, says="It is half the RAM, the kernel's default")]
        if gtt is not None and int(gtt.value or 0) > cap + ROUNDING_BYTES:
            evidence.append(Evidence(id="gtt", reading=gtt, says="The GTT of amdgpu itself is above it; HIP does not use that"))
        return Verdict(cause="ttm-gtt-cap", confidence="likely", evidence=evidence, missing=[MESSAGE],
                       summary=f"This APU gives a program at most {bank.show()}: the TTM limit stands at its default, "
                               "half the RAM.",
                       next_step=NextStep(what="Weigh how much RAM the system needs before raising ttm.pages_limit",
                                          command="cat /sys/module/ttm/parameters/pages_limit",
                                          precondition="the failing program really needs more than this",
                                          blast_radius="none: it reads"))
    return None


def _nothing(bundle: Bundle, found: tuple[Gpu, ...]) -> Verdict:
    readings = [p.used for gpu in found for p in gpu.pools[:1]] or [_looked_at(bundle)]
    return Verdict(cause="cannot-tell", confidence="weak", missing=[MESSAGE],
                   summary="Nothing that a look shows explains a failure here.",
                   evidence=[Evidence(id=f"used-{n}", reading=reading, says="In use, with no holder missing")
                             for n, reading in enumerate(readings, 1)],
                   next_step=NextStep(what="Keep the error message of the failing program and capture while it runs",
                                      command="python3 -m helpers capture",
                                      precondition="the program is running or has just failed"))


def _looked_at(bundle: Bundle) -> Reading:
    return seen(len(bundle.items), "count", "evidence items", "")

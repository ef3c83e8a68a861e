"""What tools print beside an error: tables by the words of their heads, whatever box, comma or blank parts their columns."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.ground.tables import data
from helpers.judge.evidence import case_evidence, evidence_from_message
from helpers.judge.posted_processes import processes
from helpers.look.figures import figures_of
from helpers.look.printed import printed_lines, split_printed

SAMPLES = Path(__file__).parent / "samples"
MIB = 1 << 20
ERROR = "RuntimeError: HIP error: out of memory\n"

NVIDIA = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: 11.4     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   1  Quadro RTX 6000     Off  | 00000000:41:00.0 Off |                  Off |
| 33%   31C    P8    14W / 260W |  22011MiB / 24220MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|        ID   ID                                                   Usage      |
|=============================================================================|
|    1   N/A  N/A      1877      G   /usr/lib/xorg/Xorg                  9MiB |
|    1   N/A  N/A    640113      C   python3 serve all.py            22000MiB |
+-----------------------------------------------------------------------------+
"""
OLD_NVIDIA = """\
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0      7122      C   ./solver                                    5120MiB |
"""
CSV = "pid, used_gpu_memory [MiB], process_name\n7122, 5120 MiB, ./solver\n"
NO_UNITS = "pid, process_name, used_gpu_memory [MiB]\n7122, ./solver, 5120\n"
NO_HEAD = (
    "$ nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader\n7122, 5120 MiB\n"
)
ROCM = (SAMPLES / "rocm-smi-3.0-rocm-6.3" / "pids.txt").read_text()
OLD_ROCM = (SAMPLES / "rocm-smi-1.4-rocm-3.9" / "pids.txt").read_text()
AMD = (SAMPLES / "amd-smi-26.5-rocm-7.14" / "table_apu.txt").read_text()
NVITOP = """\
│ GPU     PID      USER  GPU-MEM %SM  %CPU  %MEM  TIME  COMMAND            │
╞══════════════════════════════════════════════════════════════════════════╡
│   0    7122 C anna+    5120MiB   0   0.0   0.3  0:42  ./solver --all     │
"""
GPUSTAT = "[0] Quadro P6000 | 41'C,   0 % |  5300 / 24576 MB | anna:solver/7122(5120M)\n"
LISTS = {
    "nvidia-smi": (NVIDIA, [(1877, 9 * MIB), (640113, 22000 * MIB)]),
    "an old nvidia-smi": (OLD_NVIDIA, [(7122, 5120 * MIB)]),
    "csv in another order": (CSV, [(7122, 5120 * MIB)]),
    "csv without units": (NO_UNITS, [(7122, 5120 * MIB)]),
    "csv under its command": (NO_HEAD, [(7122, 5120 * MIB)]),
    "rocm-smi": (ROCM, [(71802, 24612175872), (70114, 0)]),
    "an old rocm-smi": (OLD_ROCM, [(40211, 6442450944), (40377, 1048576)]),
    "amd-smi": (AMD, [(3391, 64209761075), (3502, 1181116006)]),
    "nvitop": (NVITOP, [(7122, 5120 * MIB)]),
    "gpustat": (GPUSTAT, [(7122, 5120 * MIB)]),
}


def holders(evidence):
    return [(row.pid, row.bytes) for row in processes(evidence) if row.bytes is not None]


@pytest.mark.parametrize("tool", LISTS)
def test_processes_of_a_printed_list_are_holders_beside_an_error_and_as_a_tools_output(tool):
    text, expected = LISTS[tool]
    assert holders(evidence_from_message(ERROR + text)) == expected
    assert holders(evidence_from_message(text + ERROR)) == expected
    assert holders(case_evidence({"tool_outputs": {tool: text}})) == expected


@pytest.mark.parametrize("prefix", ["> ", "    ", "2026-02-03 04:05:06 "])
def test_a_table_is_read_behind_quoting_marks_and_times(prefix):
    text = "".join(prefix + line for line in NVIDIA.splitlines(keepends=True))
    assert holders(evidence_from_message(ERROR + text)) == LISTS["nvidia-smi"][1]


def test_of_a_list_that_was_printed_twice_the_last_counts():
    earlier = NVIDIA.replace("640113", "555001").replace("22000MiB |", "12000MiB |")
    text = f"{ERROR}{earlier}$ kill 555001\n{NVIDIA}"
    assert holders(evidence_from_message(text)) == LISTS["nvidia-smi"][1]
    gone = "".join(line for line in NVIDIA.splitlines(True) if "N/A  N/A" not in line)
    assert holders(evidence_from_message(f"{ERROR}{NVIDIA}$ kill 640113\n{gone}")) == []
    sizes = [
        (figure.device, figure.when, figure.bytes)
        for figure in figures_of(evidence_from_message(text).texts)
        if (figure.measure, figure.pool) == ("used", "vram")
    ]
    assert sizes == [("1", 0, 22011 * MIB), ("1", 1, 22011 * MIB)]


def test_the_text_without_tables_keeps_its_length_and_its_error():
    text = ERROR + NVIDIA + "\nKeyError: 7\n"
    rest, printed = split_printed(text)
    assert len(rest) == len(text) and rest.count("\n") == text.count("\n")
    assert "out of memory" in rest and "KeyError: 7" in rest and "Quadro" not in rest
    assert {tool for tool, _ in printed} == {"nvidia-smi"}


def test_a_message_in_the_name_of_a_process_is_none():
    row = "|    0   N/A  N/A     812      C   CUDA out of memory. Tried to  5120MiB |"
    assert evidence_from_message("Processes:\n" + row).messages == ()


def test_prose_with_the_words_of_heads_is_no_table():
    for line in ("Usage of memory by PID 12", "The Command said: GPU Memory, 12 of it", "RSS grew"):
        assert printed_lines(f"{line}\n12 34 MiB\n") == ()


@pytest.mark.parametrize("row", data("look/printed")["lines"], ids=lambda row: row["tool"])
def test_each_form_of_a_tools_line_takes_its_own_example(row):
    assert row["source"] and split_printed(row["example"])[1] == (
        (row["tool"], row["example"] + "\n"),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*NVIDIA.splitlines(), *ROCM.splitlines(), *CSV.splitlines(), ""])))
def test_any_order_of_a_tables_lines_is_read_without_an_error(lines):
    text = "\n".join(lines)
    rest, printed = split_printed(text)
    assert len(rest) == len(text)
    assert all(row.end <= len(text) for row in printed_lines(text))
    outputs = "".join(output for _, output in printed).splitlines()
    assert set(outputs) <= {*lines, ""}

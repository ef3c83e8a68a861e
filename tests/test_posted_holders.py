"""A process list posted beside an error: its rows are shown, and who covers what is outside the program is named."""

from changed_boxes import oom
from command_line import verb

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message
from helpers.judge.ledger import ledgers_of

MIB = 1 << 20
OWN = " Including non-PyTorch memory, this process has 5.40 GiB memory in use."
MESSAGE = oom("1.50 GiB", "15.73 GiB", "240.00 MiB", "4.90 GiB", "120.00 MiB", OWN)


def table(*processes):
    used = sum(mib for _, _, mib in processes) + 60
    rows = "\n".join(
        f"|    0   N/A  N/A    {pid:>7}      C   {name:<42}{mib:>6}MiB |"
        for pid, name, mib in processes
    )
    rule = "\n|" + 41 * "-" + "+" + 24 * "-" + "+" + 22 * "-" + "|"
    return (
        "\n| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |"
        f"{rule}\n| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"
        "\n| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |"
        f"{rule.replace('-', '=')}"
        "\n|   0  NVIDIA RTX A4000               Off |   00000000:3B:00.0 Off |                  Off |"
        f"\n| 41%   60C    P2             90W /  140W | {used:>8}MiB /  16376MiB |     97%      Default |"
        f"{rule}\n| Processes:                                                                              |"
        "\n|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |"
        "\n|        ID   ID                                                               Usage      |"
        f"\n{rows}\n"
    )


def test_the_rows_of_a_posted_list_stand_in_the_wide_answer(tmp_path):
    path = tmp_path / "posted.txt"
    path.write_text(MESSAGE + table((5120, "./serve", 9980), (5121, "python3", 5540)))
    code, out, err = verb("diagnose", "--message", path, "--wide")
    assert code == 0, err
    assert "./serve (5120)" in out
    assert "9.75 GiB" in out
    assert "GPU 0" in out


def test_a_listed_process_that_covers_what_is_outside_is_named():
    evidence = evidence_from_message(
        MESSAGE + table((5120, "./serve", 9980), (5121, "python3", 5540))
    )
    verdict = diagnose(evidence)
    assert (verdict.cause, verdict.confidence) == ("external-holder", "likely")
    assert any("./serve (5120)" in row.says for row in verdict.evidence)
    (book,) = [book for book in ledgers_of(evidence) if book.account == "tool"]
    assert sum(row.bytes.bytes for row in book.rows) == book.used.bytes


def test_a_list_of_the_program_alone_covers_nothing():
    evidence = evidence_from_message(MESSAGE + table((5121, "python3", 5540)))
    assert not any(row.id == "outside-named" for row in diagnose(evidence).evidence)


def test_a_posted_list_has_a_ledger_whose_last_row_is_what_no_listed_process_uses():
    posted = MESSAGE + table((5120, "./serve", 9980), (5121, "python3", 5540))
    book = ledgers_of(evidence_from_message(posted))[-1]
    assert (book.total.bytes, book.used.bytes) == (16376 * MIB, (9980 + 5540 + 60) * MIB)
    assert [row.bytes.bytes for row in book.rows] == [9980 * MIB, 5540 * MIB, 60 * MIB]

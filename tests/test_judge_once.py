"""What a diagnose needs several times is worked out once: accounts, ceilings, ledgers, the verdict."""

from collections import Counter

import pytest
from changed_boxes import oom

from helpers.judge import ceilings, diagnosis, evidence, ledger
from helpers.judge.evidence import evidence_from_message
from helpers.look.boxes import open_box

ERROR = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.50 GiB", "100.00 MiB")


@pytest.fixture
def counts(monkeypatch):
    """How often each of the functions was called that work something out."""
    calls = Counter()

    def count(module, name):
        function = getattr(module, name)

        def counted(*arguments):
            calls[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, counted)

    count(evidence, "account_of")
    count(ceilings, "_stack")
    count(ledger, "_of_card")
    count(diagnosis, "observe")
    return calls


def test_a_diagnose_with_its_tables_works_each_out_once(counts, capsys):
    from dataclasses import replace

    from helpers.tell import message

    case = replace(evidence_from_message(ERROR), bundle=open_box("strix-halo-1-found"))
    for _ in range(2):
        diagnosis.diagnose(case)
        message.message_table(case)
        message.sums(case)
        message.books(case)
    assert counts == {"account_of": 1, "_stack": 1, "_of_card": 1, "observe": 1}

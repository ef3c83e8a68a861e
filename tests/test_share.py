"""What leaves the box: typed results in one file that reaches nowhere, and a sentence about what stayed."""

import hashlib
import importlib
import json
import pickle
import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night_runs import night
from page_audit import Audit, check, contrast, in_order
from tell_boxes import VERDICT, code, data, markdown, printed
from toy_allocator import MIB, Toy

from helpers import share
from helpers.batch import report
from helpers.commands import share as command
from helpers.ground.contract import as_dict
from helpers.ground.shapes import VERDICT_MIME, Alternative, Evidence, NextStep, seen
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import CaseEvidence, evidence_from_bundle
from helpers.judge.observation import WRITTEN_UP
from helpers.judge.program_facts import (
    FirstChange,
    GrowerFacts,
    GrowthFacts,
    ProgramFacts,
    Refusal,
)
from helpers.look.boxes import RECORDED, open_box, recorded_names
from helpers.share import public, verdict_facts
from helpers.share.public_copy import HIDDEN, STEP_NOT_SHOWN, SUMMARY_NOT_SHOWN
from helpers.share.verdict_facts import TABLE
from helpers.tell.verdict import label

FOLDER = Path(__file__).parent / "notebooks"
NOTEBOOKS = sorted((FOLDER.parents[1] / "notebooks").glob("*.ipynb"))
CSS = (Path(command.__file__).parents[1] / "tell" / "templates" / "casebook.css").read_text()
CODENAME = "phoenix-oncology"
"""Two plain words of English, which no list of names would find."""
PLANTED = f"""\
ottoline@quokka-bench-17:~$ python /data/{CODENAME}/train.py --run merger-eagle
class SiemensTurbineNet: GITHUB_TOKEN=ghp_a8Kd92hf7sL0a8Kd92hf7sL0a8Kd92hf7sL0
mail ottoline@quokkas.example from 10.44.3.19, peak 61.27 GiB
"""
SECRETS = re.findall(r"[\w-]*(?:ottoline|quokka|oncology|eagle|Siemens|ghp_|10\.44)[\w-]*", PLANTED)


def loud_verdict():
    """A verdict whose every text holds what must not leave, with one number."""
    number = Evidence(id=CODENAME, reading=seen(7 << 30, "bytes", PLANTED), says=PLANTED)
    text = Evidence(id="b", reading=seen(PLANTED, "text", PLANTED), says=PLANTED)
    step = NextStep(what=PLANTED, command=PLANTED)
    return replace(
        VERDICT,
        title=PLANTED.splitlines()[0],
        summary=PLANTED,
        evidence=[number, text],
        next_step=step,
    )


def loud_notebook(path, box="cuda-healthy"):
    """A notebook that holds what must not leave in a source, in outputs and in its verdict."""
    outputs = [
        printed(PLANTED),
        printed(PLANTED, "stderr"),
        data(text__html=f"<b>{PLANTED}</b>", text__plain=PLANTED),
        nbformat.v4.new_output("display_data", {VERDICT_MIME: as_dict(loud_verdict())}),
    ]
    cells = [
        code(f'box: str = "{box}"\nname = "{CODENAME}"', tags=("parameters",)),
        code(f"run({PLANTED!r})", *outputs),
        markdown(PLANTED),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.fixture(scope="module")
def loud_batch(example_batch, tmp_path_factory):
    """A batch with what must not leave in every text of its records and in their notebooks."""
    folder = tmp_path_factory.mktemp("outputs") / f"20261121T210000Z-{CODENAME}"
    shutil.copytree(example_batch, folder)
    loud_notebook(folder / "01-probe" / "notebook.ipynb")
    for path in folder.glob("0[1-5]*/run.json"):
        record = json.loads(path.read_text())
        texts = ("cause", "last_words", "node", "box", "gate", "quarantined", "preset", "signal")
        record |= dict.fromkeys(texts, PLANTED)
        record["notes"] = [PLANTED]
        record["files"] = [f"{CODENAME}.log"]
        record["parameters"] = {"message": PLANTED, CODENAME: 3, "capacity": "20GiB"}
        if record["verdict"]:
            record["verdict"] = as_dict(loud_verdict())
        path.write_text(json.dumps(record))
    return folder


def shared(target):
    return share.page_of(share.subject_of(Path(target)))


@pytest.fixture(scope="module")
def batch_page(example_batch):
    return shared(example_batch)


def outside(html):
    """The words of a page."""
    return Audit(html).text


# Nothing leaves that is not typed


def leaked(*texts):
    return [word for word in SECRETS for text in texts if word in text]


def test_no_text_of_a_batch_leaves_and_its_numbers_do(loud_batch):
    page = shared(loud_batch)
    assert leaked(page.html, page.name, page.left_out) == []
    assert "7.00 GiB" in outside(page.html)
    assert "01_hardware_probe" in outside(page.html)


def test_no_text_of_one_run_leaves_its_page(loud_batch):
    page = shared(loud_batch / "01-probe")
    assert leaked(page.html, page.name, page.left_out) == []


def test_no_text_of_a_notebook_leaves_and_its_number_does(tmp_path):
    page = shared(loud_notebook(tmp_path / f"{CODENAME}.ipynb"))
    assert leaked(page.html, page.name, page.left_out) == []
    assert "7.00 GiB" in outside(page.html)
    assert page.name == "notebook"


@pytest.mark.parametrize("tracker", share.TRACKERS)
def test_no_text_of_a_notebook_leaves_in_a_report(tmp_path, tracker):
    about = share.subject_of(loud_notebook(tmp_path / "own.ipynb"))
    text = share.issue_text(tracker, about)
    assert leaked(text) == []
    assert "7.00 GiB" in text


NOT_ON_THE_PAGE = (HIDDEN, STEP_NOT_SHOWN, SUMMARY_NOT_SHOWN)


def test_what_a_program_keeps_and_how_to_change_it_is_shared_without_its_names():
    line = "payroll.py:13 <module>"
    grower = GrowerFacts(line, "payroll.py:9 <module>", 16 * MIB, 160 * MIB, keeper="salaries")
    change = "Keep salaries on the CPU (payroll.py:13)"
    facts = ProgramFacts(
        source="recording of payroll.pickle",
        capacity_bytes=512 * MIB,
        usable_bytes=512 * MIB,
        exit_code=1,
        ooms=1,
        refusal=Refusal(64 * MIB, MIB, 500 * MIB, 511 * MIB, where=line, callers=(line,)),
        growth=GrowthFacts((grower,), steps=10),
        trace="/home/someone/payroll.pickle",
        command="python payroll.py --team emea",
        first_change=FirstChange(change, "copies each entry to the CPU"),
    )
    evidence = CaseEvidence(program=facts)
    page = share.page_of(share.Subject(evidence=evidence, verdict=diagnose(evidence)))
    assert [word for word in ("salaries", "payroll", "someone", "emea") if word in page.html] == []
    text = outside(page.html)
    assert "more each step in variable 1 (your file 1, line 13)" in text
    assert "Keep variable 1 on the CPU (your file 1, line 13)" in text
    assert not [words for words in NOT_ON_THE_PAGE if words in text]


def test_a_recording_is_shared_with_its_sizes_and_without_the_names_of_its_program(tmp_path):
    toy = Toy()
    secret = {"name": "salaries", "filename": "/home/someone/payroll.py", "line": 9}
    for _ in range(10):
        toy.alloc(20 * MIB, [secret])
    toy.say("oom", MIB, 64 * MIB, frames=[secret])
    path = tmp_path / "payroll.pickle"
    path.write_bytes(pickle.dumps(toy.snapshot()))
    page = shared(path)
    (tmp_path / "torn.pickle").write_text("no snapshot")
    with pytest.raises(share.ShareError, match="torn.pickle holds"):
        share.subject_of(tmp_path / "torn.pickle")
    assert [word for word in ("salaries", "payroll", "someone") if word in page.html] == []
    assert "64.00 MiB" in outside(page.html)
    assert "your file 1, line 9" in outside(page.html)
    assert not [words for words in NOT_ON_THE_PAGE if words in page.html]
    assert "looked at the recording of one program" in outside(page.html)
    assert "Which computer" not in outside(page.html)


@pytest.mark.parametrize("box", recorded_names())
@pytest.mark.parametrize("share_of_words", [0.1, 0.5])
def test_no_text_of_a_bundle_leaves(tmp_path, box, share_of_words):
    """Any word of a captured box may be a person's: some are, and none of those is on the page."""
    dice = random.Random(f"{box} {share_of_words}")
    copy = tmp_path / "box"
    shutil.copytree(RECORDED / box, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    replaced = 0
    for item in manifest["items"]:
        item["sha256"] = ""
        if not item["path"]:
            continue
        path = copy / item["path"]
        words = re.split(r"([A-Za-z]{4,})", path.read_text(errors="replace"))
        for at in range(1, len(words), 2):
            if dice.random() < share_of_words:
                words[at] = CODENAME
                replaced += 1
        raw = "".join(words).encode()
        path.write_bytes(raw)
        item["bytes"] = len(raw)
        item["sha256"] = hashlib.sha256(raw).hexdigest()
    assert replaced > 10
    (copy / "manifest.json").write_text(json.dumps(manifest))
    notebook = loud_notebook(tmp_path / "own.ipynb", box=str(copy))
    about = share.subject_of(notebook)
    assert about.bundle is not None
    texts = [share.page_of(about).html]
    texts += [share.issue_text(tracker, about) for tracker in share.TRACKERS]
    assert leaked(*texts) == []


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_text_passes_that_no_list_or_pattern_knows(text):
    """What passes is made of letters, digits and the signs of sizes, releases and addresses."""
    passed = [
        public.chip(text),
        public.source(text),
        public.parameter(text),
        public.version(text),
        public.signal_name(text),
        public.box(text),
    ]
    for words in filter(None, passed):
        assert re.fullmatch(r"[\w .:;/()+\-,\[\]]+", words)


@pytest.mark.parametrize(
    ("rule", "text", "passes"),
    [
        (public.chip, "AMD Radeon RX 7900 XTX", "AMD Radeon RX 7900 XTX"),
        (public.chip, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        (
            public.chip,
            "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
            "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
        ),
        (public.chip, f"NVIDIA {CODENAME} 4090", ""),
        (public.chip, "", ""),
        (public.version, "6.17.4-200.fc42-ottoline", "6.17.4-200.fc42"),
        (public.version, "2.10.0a0+rocm7.10.0a20251015", "2.10.0a0+rocm7.10.0"),
        (public.version, "custom", ""),
        (public.distribution, "Ubuntu 24.04.1 LTS (eagle)", "Ubuntu 24.04.1"),
        (public.distribution, "Eagle Linux", ""),
        (
            public.kernel_parameters,
            "root=/dev/eagle ttm.pages_limit=42 iommu=pt",
            "ttm.pages_limit=42 iommu=pt",
        ),
        (public.allocator_settings, "expandable_segments:True,eagle:1", "expandable_segments:True"),
        (public.source, "/proc/meminfo", "/proc/meminfo"),
        (public.source, "rocm-smi --eagle", "rocm-smi"),
        (public.source, "/home/eagle", ""),
        (
            public.source,
            "/sys/module/ttm/parameters/pages_limit",
            "/sys/module/ttm/parameters/pages_limit",
        ),
        (public.source, "/sys/module/ttm/parameters/eagle", ""),
        (public.source, "/sys/class/drm/card0/device/mem_info_eagle", ""),
        (public.source, "/sys/fs/cgroup/memory.eagle", ""),
        (public.kernel_parameters, "ttm.pages_limit=eagle ttm.eagle=1", ""),
        (public.allocator_settings, "max_split_size_mb:eagle", ""),
        (public.source, "/proc/meminfo; /home/eagle", "/proc/meminfo"),
        (public.parameter, 20, "20"),
        (public.parameter, True, "True"),
        (public.parameter, "8GiB", "8GiB"),
        (public.parameter, "cuda-healthy", "cuda-healthy"),
        (public.parameter, "0000:c5:00.0", "0000:c5:00.0"),
        (public.parameter, "eagle", ""),
        (public.parameter, [1, "8GiB"], "[1, 8GiB]"),
        (public.parameter, [1, "eagle"], ""),
        (public.parameter, [[1]], ""),
        (public.parameter, float("nan"), ""),
        (public.parameter, {"eagle": 1}, ""),
        (public.batch_name, "20261121T210000Z-eagle", "20261121T210000Z"),
        (public.batch_name, "eagle", "batch"),
    ],
)
def test_a_rule_lets_through_what_it_knows(rule, text, passes):
    assert rule(text) == passes


def test_the_page_says_in_a_sentence_what_was_left_out(loud_batch):
    page = shared(loud_batch)
    assert page.left_out.startswith("Left out, because they may hold a person's words: ")
    for kind in (
        "executed notebooks",
        "texts of a record",
        "texts of a verdict",
        "1 unreadable record",
    ):
        assert kind in page.left_out
    assert page.left_out in outside(page.html)


# The cover


def test_the_cover_says_to_a_stranger_which_box_why_how_sure_and_what_is_asked(batch_page):
    text = check(batch_page.html).text
    row = TABLE["causes"]["ttm-gtt-cap"]
    for words in (row["plain"], row["ask"], row["instead"], "21 November 2026"):
        assert words in text
    assert "need not install or run anything" in text
    assert "15.24 GiB" in text
    assert in_order(
        text,
        "Which computer",
        "Technically:",
        "How sure",
        "What you can do",
        "Words",
        "What the answer rests on",
        "Runs",
        "What was left out",
    )


def test_the_cover_names_how_many_readings_of_a_recorded_box_were_filled_in(tmp_path):
    text = outside(shared(loud_notebook(tmp_path / "x.ipynb", "rx7900xt-container")).html)
    assert (
        "Of this example's 54 readings, 3 were printed by a real machine; the other 51 were" in text
    )
    assert f'the answer marks them "{WRITTEN_UP.strip(" ()")}"' in text
    assert WRITTEN_UP in text
    assert "This is a recorded example. You need not act on it." in text
    assert "Answer whoever sent you" not in text
    assert "2 x AMD Radeon RX 7900 XT" in text


def test_the_page_of_a_cause_outside_the_list_says_why_once():
    text = check(shared(RECORDED / "cpu-only").html).text
    assert in_order(text, "No GPU on this machine", "Why", "Next step", "take the next step above")
    assert text.count("Why\n") == 1
    assert "In plain words" not in text
    assert "its words are not on the page" not in text


@pytest.mark.parametrize("box", recorded_names())
def test_no_view_of_a_shared_page_is_empty(box):
    assert ": none." not in outside(shared(RECORDED / box).html)


@pytest.mark.parametrize("box", recorded_names())
def test_a_shared_page_says_how_sure_it_is_as_the_terminal_does(box):
    verdict = diagnose(evidence_from_bundle(open_box(box)))
    words = label(verdict)
    text = outside(shared(RECORDED / box).html)
    assert in_order(text, words, "How sure this is", f"{words[:1].upper()}{words[1:]}.")


def test_the_cover_of_no_known_box_and_no_verdict_asks_its_reader(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[code("1")])
    nbformat.write(notebook, tmp_path / "case.ipynb")
    text = outside(shared(tmp_path / "case.ipynb").html)
    assert TABLE["causes"]["none"]["ask"] in text
    assert "Answer whoever sent you" in text
    assert "recorded example" not in text
    assert "1 source of a cell" in text


def test_a_cause_outside_the_list_is_not_offered_as_what_it_may_also_be():
    others = [Alternative(cause=cause, confidence="weak") for cause in ("other", "user-leak")]
    lines = verdict_facts.still_open(replace(VERDICT, alternatives=others))
    assert len(lines) == 1


def test_a_cause_outside_the_list_and_a_side_question_have_the_workbooks_own_words():
    loud = replace(loud_verdict(), cause="other")
    assert verdict_facts.headline(loud) == "A cause outside the list"
    assert verdict_facts.headline(replace(loud, state="aside")) == verdict_facts.ASIDE
    assert verdict_facts.headline(None) == verdict_facts.NO_ANSWER


# Any subject


def test_one_run_has_a_page_of_its_own_and_is_the_same_by_its_notebook(example_batch):
    run = example_batch / "01-probe"
    text = check(shared(run).html).text
    assert "01_hardware_probe" in text
    assert "02_allocator_stress" not in text
    assert share.subject_of(run / "notebook.ipynb") == share.subject_of(run)


def test_a_night_is_one_file(tmp_path):
    text = check(shared(night(tmp_path / "n", 30)).html).text
    assert "30" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_committed_notebook_has_a_page_under_its_own_name(path):
    page = shared(path)
    check(page.html)
    assert page.name == path.stem


@pytest.mark.parametrize("name", ["shows_hostile_outputs", "was_written_for_another_kernel"])
def test_an_odd_notebook_has_a_page(name):
    page = shared(FOLDER / f"{name}.ipynb")
    check(page.html)
    assert "alert(" not in outside(page.html)


def test_a_torn_notebook_of_a_batch_costs_nothing(example_batch, tmp_path):
    shutil.copytree(example_batch, tmp_path / "night")
    (tmp_path / "night" / "02-stress" / "notebook.ipynb").write_text('{"cells": [')
    assert "02_allocator_stress" in outside(shared(tmp_path / "night").html)


@pytest.mark.parametrize("name", ["nothing", "empty", "torn.ipynb", "run"])
def test_what_is_nothing_to_share_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    for file in ("nothing", "torn.ipynb"):
        (tmp_path / file).write_text("no notebook")
    with pytest.raises(share.ShareError, match="expected a") as refused:
        share.subject_of(tmp_path / name)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_the_bundle_that_a_batch_captured_is_the_one_it_is_about_and_a_broken_one_is_a_reason(
    example_batch, tmp_path
):
    folder = tmp_path / "night"
    shutil.copytree(example_batch, folder)
    shutil.copytree(RECORDED / "cpu-only", folder / "box")
    assert share.subject_of(folder).bundle.box == "cpu-only"
    assert share.subject_of(folder / "01-probe").bundle.box == "cpu-only"
    (folder / "box" / "manifest.json").write_text("{")
    about = share.subject_of(folder)
    assert about.bundle is None
    assert about.no_bundle.startswith("the bundle cannot be read: ")
    assert about.verdict.cause == "ttm-gtt-cap"
    assert about.steps == ("01_hardware_probe.ipynb",)


def test_a_run_about_a_recorded_box_shares_nothing_of_the_machine_that_ran_it(
    example_batch, tmp_path
):
    """The batch captured its own machine too, for its report on "live"."""
    folder = tmp_path / "night"
    shutil.copytree(example_batch, folder)
    shutil.copytree(RECORDED / "cpu-only", folder / "box")
    manifest = json.loads((folder / "box" / "manifest.json").read_text())
    manifest |= {"box": "otterhost", "kind": "live"}
    (folder / "box" / "manifest.json").write_text(json.dumps(manifest))
    record = folder / "01-probe" / "run.json"
    run = json.loads(record.read_text())
    record.write_text(json.dumps({**run, "box": "rx7900xt-container", "parameters": {}}))
    assert share.subject_of(folder / "01-probe").bundle.box == "rx7900xt-container"
    record.write_text(json.dumps({**run, "box": "live", "parameters": {}}))
    assert share.subject_of(folder / "01-probe").bundle.box == "otterhost"


# How it looks


def test_a_page_is_valid_html(batch_page):
    html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")
    html5lib.HTMLParser(strict=True).parse(batch_page.html)


def test_a_print_cuts_no_row_no_command_and_no_part_of_the_cover(batch_page):
    rules = "".join(re.findall(r"@media print \{(.*?)\n\}", Audit(batch_page.html).style, re.S))
    for kept in (".cover > :not(.glossary)", "tr", ".command"):
        assert re.search(re.escape(kept) + r"[^{}]*\{ break-inside: avoid; \}", rules), kept


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme):
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.005)
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.S)
    light, other = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", blocks[i])) for i in (0, scheme))
    colors = {**light, **other}
    for ink in ("ink", "soft", "accent", "alarm"):
        for ground in ("paper", "card", "wash", "wash-accent"):
            assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)


# The command


def test_the_command_writes_the_page_says_what_it_left_out_and_never_overwrites(
    example_batch, tmp_path, share_command
):
    out = tmp_path / "page.html"
    status, said, told = share_command(example_batch / "01-probe", "--out", out)
    assert status == 0
    assert said == f"Open: {out}\n"
    assert told.startswith("Without a box: no evidence bundle of this box lies beside it\n")
    assert told.splitlines()[1].startswith("Left out, because they may hold a person's words: ")
    before = out.read_bytes()
    with pytest.raises(ValueError, match="already there; choose another --out or add --force"):
        share_command(FOLDER / "raises.ipynb", "--out", out)
    assert out.read_bytes() == before
    assert share_command(FOLDER / "raises.ipynb", "--out", out, "--force")[0] == 0
    assert out.read_bytes() != before


def test_the_command_writes_a_report_beside_the_page_and_answers_as_json(
    example_batch, tmp_path, share_command
):
    out = tmp_path / "page.html"
    _, said, _ = share_command(example_batch, "--out", out, "--issue", "rocm", "--json")
    answer = json.loads(said)
    report = tmp_path / "page.rocm.md"
    assert answer["issue"] == str(report)
    assert answer["bytes"] == len(out.read_bytes())
    assert "### Problem Description" in report.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere: nothing to share; expected"),
        (["X", "--issue", "jira"], "--issue jira: expected one of rocm,"),
        ([FOLDER / "raises.ipynb", "--out", "/nowhere/x.html"], "expected a file that ends in"),
    ],
)
def test_wrong_use_is_one_line(share_command, words, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        share_command(*words)


def test_the_command_is_imported_without_what_it_draws_with():
    before = set(sys.modules)
    importlib.reload(command)
    assert not {"mistune", "nh3", "matplotlib"} & (set(sys.modules) - before)


def test_the_rooms_public_names_are_loaded_when_asked_for():
    assert 5 <= len(share.__all__) <= 12
    for name in share.__all__:
        assert getattr(share, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'redact'"):
        share.redact  # noqa: B018


def test_a_batch_over_several_boxes_has_the_whole_answer_of_each_in_its_sentences(tmp_path):
    batch_folder = tmp_path / "20260301T210000Z-two"
    night(batch_folder, 2)
    boxes = ["strix-halo-1-found", "cuda-24gb-tuning"]
    verdicts = [diagnose(evidence_from_bundle(open_box(box))) for box in boxes]
    paths = sorted(batch_folder.glob("*/run.json"))
    for path, box, verdict in zip(paths, boxes, verdicts, strict=True):
        record = {**json.loads(path.read_text()), "box": box, "verdict": as_dict(verdict)}
        path.write_text(json.dumps(record))
    page = shared(batch_folder)
    text = check(page.html).text
    assert "looked at 2 computers, or at records of them" in text
    assert "Recorded examples: strix-halo-1-found, cuda-24gb-tuning." in text
    private = report.page(batch_folder)
    headline = re.search(r"<h2>(2 of 2 boxes have a problem.*)</h2>", private)[1]
    assert f"<title>{headline} - a report" in page.html
    assert f"<h1>{headline}</h1>" in page.html
    assert "Whoever sent you this page owns" not in text
    for verdict in verdicts:
        assert text.count(verdict.title) >= 2
        assert verdict.next_step.command.splitlines()[-1] in text


@pytest.mark.parametrize("others", [(), ("cuda-healthy",)])
def test_each_value_of_a_sweep_has_its_answer_on_a_shared_page(tmp_path, others):
    batch_folder = tmp_path / "20260301T210000Z-sweep"
    night(batch_folder, 2 + len(others))
    verdict = diagnose(evidence_from_bundle(open_box("strix-halo-1-found")))
    paths = sorted(batch_folder.glob("*/run.json"))
    runs = [("strix-halo-1-found", {"reserve": size}) for size in ("8GiB", "16GiB")]
    runs += [(box, {}) for box in others]
    for path, (box, parameters) in zip(paths, runs, strict=True):
        size = parameters.get("reserve", "24GiB")
        step = replace(verdict.next_step, command=f"casebook rehearse --capacity {size}")
        record = json.loads(path.read_text())
        record |= {"box": box, "parameters": parameters, "notebook": "03_ttm_gtt_analysis.ipynb"}
        record["verdict"] = as_dict(replace(verdict, next_step=step))
        path.write_text(json.dumps(record))
    text = outside(shared(batch_folder).html)
    assert in_order(text, "reserve 8GiB", "With other values: 1 more answer", "reserve 16GiB")


def test_a_batch_over_several_boxes_begins_with_a_table_of_their_verdicts(tmp_path):
    batch_folder = tmp_path / "20260301T210000Z-two"
    night(batch_folder, 4)
    for number, path in enumerate(sorted(batch_folder.glob("*/run.json"))):
        record = json.loads(path.read_text())
        record["box"] = ["quokka-1", "cuda-healthy"][number % 2]
        path.write_text(json.dumps(record))
    text = check(shared(batch_folder).html).text
    assert in_order(
        text,
        "The boxes and what was found on each",
        "The evidence of one of them",
        "Runs",
    )
    assert "box-1" in text
    assert "quokka" not in text

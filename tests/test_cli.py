"""The command line: one line and exit 2 on wrong use, JSON twins, and capture without any package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pythons import starts

from helpers.shapes import Verdict, from_json

ROOT = Path(__file__).resolve().parents[1]


def casebook(*argv, cwd=ROOT, **options):
    return subprocess.run(
        [sys.executable, "-m", "helpers", *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["diagnose", "no-such-box"], "expected live, a bundle's path, or one of cpu-only"),
        (
            ["diagnose", "/no/such/bundle.tar.gz"],
            "no such file or folder; expected an evidence bundle",
        ),
        (["diagnose", "cpu-only", "extra"], "unrecognized arguments: extra; see:"),
        (["gremlins"], "invalid choice: 'gremlins'"),
        (["run", "no-such-plan.yaml"], "cannot be read"),
        (["status", "/no/such/batch"], "no such folder; expected a batch below outputs"),
        (["report", "/no/such/batch"], "no such folder; expected a batch below outputs"),
        (["schema", "gremlin"], "expected one of reading, manifest"),
        (["bench", "gremlin"], "expected some of capture"),
        (["check", "--gpu", "0000:ff:00.0"], "give a PCI address such as"),
    ],
)
def test_wrong_use_gets_one_line_and_exit_2(argv, words):
    done = casebook(*argv)
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""
    assert done.stderr.startswith("casebook: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("name: x\nruns: []\n", "runs: List should have at least 1 item"),
        ("name: x\nrunz: []\n", "runz"),
        (
            "name: x\nruns:\n  - notebook: 01_hardware_probe.ipynb\n    parameters: {bax: live}\n",
            "bax",
        ),
        (
            "name: x\nruns:\n  - notebook: 01_hardware_probe.ipynb\n    parameters: {checks: perhaps}\n",
            "checks",
        ),
        ("name: x\nruns:\n  - notebook: no_such.ipynb\n", "no_such.ipynb"),
        (
            "name: x\nlimits: {cell_s: fast}\nruns:\n  - notebook: 01_hardware_probe.ipynb\n",
            "cell_s",
        ),
        ("[", "expected a plan in YAML"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_runs(tmp_path, change, words):
    plan = tmp_path / "plan.yaml"
    plan.write_text(change)
    done = casebook("run", str(plan), "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))


def test_diagnose_prints_a_verdict_as_text_and_as_json():
    text, data = (
        casebook("diagnose", "rx7900xt-container", "--wide"),
        casebook("diagnose", "rx7900xt-container", "--json"),
    )
    assert text.returncode == data.returncode == 0
    verdict = from_json(Verdict, data.stdout)
    assert verdict.cause == "external-holder" and "(external-holder;" in text.stdout
    assert "19.98 GiB" in text.stdout and "no visible process" in text.stdout


def test_diagnose_reads_an_unknown_newer_bundle_in_one_line(tmp_path):
    folder = tmp_path / "newer"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"schema_version": 99, "items": []}))
    done = casebook("diagnose", str(folder))
    assert done.returncode == 2 and "schema_version 99; this workbook reads up to 1" in done.stderr


def test_a_recorded_box_goes_through_capture_form_and_back(tmp_path):
    from helpers.look.boxes import open_box
    from helpers.look.bundle import BundleWriter, open_bundle

    bundle = open_box("strix-halo-3-gttsize")
    writer = BundleWriter(bundle.box, bundle.kind, bundle.tool_version, bundle.captured_at)
    for item in bundle.items:
        writer.add(
            item.kind,
            item.source,
            bundle.contents.get(item.path),
            status=item.status,
            why=item.why,
            constructed=item.constructed,
        )
    packed = writer.write(tmp_path / "box.tar.gz")
    assert open_bundle(packed).contents == bundle.contents
    assert json.loads(casebook("diagnose", str(packed), "--json").stdout)["cause"] == "ttm-gtt-cap"


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    done = subprocess.run(  # noqa: S602
        f"{sys.executable} -m helpers diagnose rx7900xt-container | head -c 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "" and len(done.stdout) == 1


def test_a_plan_is_printed_and_not_run(tmp_path):
    done = casebook(
        "run", "notebooks/plans/quick.yaml", "--dry-run", "--json", "--out", str(tmp_path / "out")
    )
    rows = json.loads(done.stdout)
    assert [row["notebook"] for row in rows] == [
        "01_hardware_probe.ipynb",
        "03_ttm_gtt_analysis.ipynb",
        "09_case_report.ipynb",
    ]
    assert not (tmp_path / "out").exists()


def test_without_the_workbooks_packages_a_verb_names_the_way_out(tmp_path):
    bare = tmp_path / "bare.py"
    bare.write_text(
        "import sys; sys.modules['pydantic'] = None; sys.argv = ['x', 'schema', 'run'];"
        f"sys.path.insert(0, {str(ROOT)!r}); from helpers.cli import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, str(bare)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "make setup" in done.stderr and done.stderr.count("\n") == 1


MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.56 GiB of "
    "which 512.00 MiB is free. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by "
    "PyTorch but unallocated.\n"
)


@pytest.mark.parametrize("python", [sys.executable, "python3.8"])
@pytest.mark.parametrize("box", [[], ["cpu-only"]])
def test_diagnose_needs_a_python_and_nothing_else(python, box, tmp_path):
    place = python if python == sys.executable else starts(python)
    if not place:
        pytest.skip(f"no {python} here")
    (tmp_path / "message.txt").write_text(MESSAGE)
    told = [
        subprocess.run(
            [
                place,
                "-I",
                "-S",
                "-B",
                str(ROOT / "helpers/__main__.py"),
                "diagnose",
                *box,
                "--message",
                "message.txt",
                *form,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        for form in ([], ["--json"])
    ]
    assert [(done.returncode, done.stderr) for done in told] == [(0, ""), (0, "")]
    assert "Next step" in told[0].stdout and from_json(Verdict, told[1].stdout).evidence


def test_the_runs_of_one_box_come_to_one_answer(tmp_path):
    done = casebook(
        "run",
        "notebooks/plans/quick.yaml",
        "--box",
        "rx7900xt-container",
        "--out",
        str(tmp_path),
        "--json",
    )
    answers = {row["notebook"]: row["answer"] for row in json.loads(done.stdout)["runs"]}
    assert answers == {
        "01_hardware_probe.ipynb": "external-holder",
        "03_ttm_gtt_analysis.ipynb": "external-holder",
        "09_case_report.ipynb": "external-holder",
    }


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["diagnose", "--message", "/no/such/file"], "No such file"),
        (["diagnose", "cpu-only", "--case", "x.json"], "expected alone"),
        (["diagnose", "--case", "/no/such/case.json"], "case /no/such/case.json"),
        (["ttm", "strix-halo-1-found", "--target", "31457280"], "pages"),
        (["ttm", "strix-halo-1-found", "--target", "1TiB"], "RAM"),
        (["ttm", "strix-halo-1-found", "--reserve=-1GiB"], "above 0"),
        (
            ["ttm", "strix-halo-1-found", "--target", "lots"],
            "expected bytes or a number with a unit",
        ),
    ],
)
def test_a_wish_that_cannot_be_is_refused_in_one_line(argv, words):
    done = casebook(*argv)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )


def test_a_pasted_message_is_diagnosed_without_a_box():
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacity of 7.78 GiB of "
        "which 2.10 GiB is free. Process 77 has 5.60 GiB memory in use. Of the allocated memory 5.10 GiB is allocated by "
        "PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated."
    )
    done = casebook("diagnose", "--message", "-", "--json", input=text)
    answer = from_json(Verdict, done.stdout)
    assert answer.cause == "true-capacity" and answer.confidence != "confirmed"


def test_ttm_prints_its_plan_and_verify_tells_what_took():
    answer = json.loads(
        casebook("ttm", "strix-halo-3-gttsize", "--target", "120GiB", "--json").stdout
    )
    assert (answer["binding"], answer["plan"]["pages_limit"]) == ("ttm", 31457280)
    assert any("eats the reserve" in line for line in answer["warnings"])
    took = casebook("ttm", "strix-halo-4-ttm", "--verify", "strix-halo-3-gttsize")
    not_taken = casebook(
        "ttm", "strix-halo-3-gttsize", "--verify", "strix-halo-1-found", "--target", "120GiB"
    )
    assert (took.returncode, not_taken.returncode) == (0, 1), took.stdout + not_taken.stdout


def test_a_run_on_a_recorded_box_ends_with_its_page(tmp_path):
    done = casebook(
        "run", "notebooks/plans/quick.yaml", "--box", "cpu-only", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    page = Path(done.stdout.strip().splitlines()[-1].removeprefix("Open: "))
    assert page.name == "index.html" and "no GPU" in page.read_text()
    again = casebook("status", str(page.parent), "--json")
    assert json.loads(again.stdout)["counts"] == {"answered": 3}

"""With --compile a program is rehearsed twice: without torch.compile and with what it compiles."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from command_line import verb
from test_rehearse import CARD, MIB, QUIET, RUN

from helpers.commands import rehearse_bench
from helpers.rehearse import build, torches
from helpers.rehearse.environment import environment
from helpers.rehearse.rehearsal import RehearsalLimits
from helpers.rehearse.trust import trust
from helpers.rehearse.view import several

COMPILES = RehearsalLimits(compiles=True)


def test_only_a_run_that_compiles_has_a_compiler_and_it_keeps_what_it_makes_to_itself(tmp_path):
    torch = torches.Torch(tmp_path, "2.14.1", is_users=False)
    plain = environment(torch, [], CARD, tmp_path, None)
    assert plain["TORCHDYNAMO_DISABLE"] == "1" and "TRITON_CACHE_DIR" not in plain
    compiling = environment(torch, [], CARD, tmp_path, None, limits=COMPILES)
    assert compiling["TORCHDYNAMO_DISABLE"] == "" and compiling["CASEBOOK_VALUES"] == "none"
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert compiling[name].startswith(str(tmp_path))


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """What --compile makes of a program that calls ``compiled`` compiled functions."""

    def runs(compiled):
        def run(words, card, out, limits, log):
            peak_bytes = (300 if limits.compiles else 400) * MIB
            run = replace(RUN, limits=limits, exit_code=0, peak_reserved_bytes=peak_bytes)
            return replace(run, compiled=compiled)

        bench = SimpleNamespace(card=CARD, limits=RehearsalLimits(), run=run)
        options = {"compile": True, "world": 0, "ranks": "", "values": "typical"}
        bench.arguments = SimpleNamespace(force=False, json=True, **options)
        bench.command = ["python", "t.py"]
        monkeypatch.setattr(rehearse_bench, "output_file", lambda out: out.with_suffix(".txt"))
        return rehearse_bench.all_runs(bench, tmp_path / "run.pickle")

    return runs


def test_the_answer_is_that_of_the_compiled_program_beside_the_other_peak(runs):
    plain, compiled = runs(2)
    assert compiled.limits.compiles and compiled.label.endswith("compiled by torch.compile")
    (line,) = several([plain, compiled])
    says = "peak reserved: 400.00 MiB (fits) without torch.compile, 300.00 MiB (fits) with it"
    assert line == says


def test_a_program_that_compiles_nothing_is_rehearsed_once_and_that_is_said(runs, capsys):
    (plain,) = runs(0)
    assert not plain.limits.compiles
    assert "torch.compile was not called, so --compile changes nothing" in capsys.readouterr().err


def test_both_runs_say_what_became_of_torch_compile():
    (line,) = [
        line for line in trust([{**QUIET, "compiled": 2}], CARD, 1) if "torch.compile" in line
    ]
    assert line.startswith("torch.compile was asked for 2 times") and "--compile" in line
    once = {**QUIET, "compiled": 1}
    (line,) = [line for line in trust([once], CARD, 1, COMPILES) if "torch.compile" in line]
    assert line.startswith("torch.compile was asked for once; what it compiled for this card ran")


@pytest.mark.parametrize("options", ["--find-capacity", "--world 2", "--values between"])
def test_compiling_beside_several_runs_is_refused_in_one_line(options):
    done = verb("rehearse", "--gpu", "4090", "--compile", *options.split(), "--", "python", "t.py")
    assert (
        done.code == 2 and "--compile cannot be combined with --world, --values between" in done.err
    )


def test_a_torch_without_triton_is_named(monkeypatch, tmp_path):
    torch = torches.Torch(tmp_path, "2.14.1", is_users=False)
    monkeypatch.setattr(torches, "find_torch", lambda *_: (torch, tmp_path))
    for name in ("tools", "build"):
        monkeypatch.setattr(build, name, lambda *_: None)
    (tmp_path / "t.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    done = verb("rehearse", "--gpu", "4090", "--compile", "--", "python", "t.py")
    assert done.code == 2 and f"no Triton beside torch 2.14.1 in {tmp_path}" in done.err

"""What libraries change by their own arguments: transformers' Trainer, Lightning, peft."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import ANOTHER_RATE, Change, Results
from helpers.fix.precision import OTHER_NUMBERS
from helpers.fix.program import Program
from helpers.fix.recomputed import RECOMPUTED, SAME_AGAIN
from helpers.fix.source import SourceFile, called, keyword

TRAINING = re.compile(r"TrainingArguments$|^(SFT|DPO|ORPO|KTO|PPO|GRPO|Reward)Config$")
MODELS = re.compile(
    r"^from_pretrained$|^from_config$|LMHeadModel$"
    r"|For(CausalLM|SequenceClassification|ConditionalGeneration)$"
)
FACTORS = (2, 4, 8)
FASTER = "nothing; it is faster"


def results_kept_by_arguments(program: Program) -> Iterator[Change]:
    """Arguments of libraries that leave the results as they are, up to rounding."""
    yield from _back_to_training(program)
    for source, call in _training(program):
        if not keyword(call, "gradient_checkpointing"):
            yield _with_argument(
                source,
                call,
                "gradient_checkpointing",
                "True",
                Results.SAME,
                SAME_AGAIN,
                RECOMPUTED,
            )
        evaluates = keyword(call, "eval_strategy") or source.calls(
            "evaluate", "predict"
        )
        if evaluates and not keyword(call, "eval_accumulation_steps"):
            why = "the same outputs, moved to the CPU after each step"
            costs = "a transfer per step"
            yield _with_argument(
                source, call, "eval_accumulation_steps", "1", Results.SAME, why, costs
            )
        yield from _accumulated(source, call)
    for source, assign in program.find(cst.Assign):
        yield from _checkpointed_model(source, assign)


def results_changed_by_arguments(program: Program) -> Iterator[Change]:
    """Arguments of libraries that change the training."""
    other = "another optimizer trains differently"
    for source, call in _training(program):
        yield _with_argument(
            source, call, "optim", '"adafactor"', Results.OTHER, other, ANOTHER_RATE
        )
        if not keyword(call, "bf16") and not keyword(call, "fp16"):
            yield _with_argument(
                source, call, "bf16", "True", Results.OTHER, OTHER_NUMBERS, FASTER
            )
    for source, call in program.calls("LoraConfig"):
        saved = keyword(call, "modules_to_save")
        if saved is not None:
            yield Change(
                title=f"Train no whole module beside the adapters ({source.place(saved)})",
                results=Results.OTHER,
                why="the modules in modules_to_save are no longer trained",
                costs="new tokens stay untrained, and these modules are not saved with the adapters",
                edits=(source.replaced(saved.value, "None"),),
            )
    for source, call in program.calls("Trainer"):
        if "lightning" in source.text.decode() and not keyword(call, "precision"):
            yield _with_argument(
                source,
                call,
                "precision",
                '"bf16-mixed"',
                Results.OTHER,
                OTHER_NUMBERS,
                FASTER,
            )


def _training(program: Program) -> Iterator[tuple[SourceFile, cst.Call]]:
    for source, call in program.find(cst.Call):
        if TRAINING.search(called(call)):
            yield source, call


def _with_argument(
    source: SourceFile,
    call: cst.Call,
    name: str,
    value: str,
    results: Results,
    why: str,
    costs: str,
) -> Change:
    return Change(
        title=f"{called(call)}({name}={value}) ({source.place(call)})",
        results=results,
        why=why,
        costs=costs,
        edits=(source.with_argument(call, name, value),),
    )


def _accumulated(source: SourceFile, call: cst.Call) -> Iterator[Change]:
    """A smaller batch per device, and as many more of them before each step."""
    batch = keyword(call, "per_device_train_batch_size")
    size = (
        int(source.code(batch.value))
        if batch and source.code(batch.value).isdigit()
        else 8
    )
    steps = keyword(call, "gradient_accumulation_steps")
    before = (
        int(source.code(steps.value))
        if steps and source.code(steps.value).isdigit()
        else 1
    )
    for factor in FACTORS:
        if size % factor:
            return
        batches = f"Batches of {size // factor}, {factor * before} of them in each step"
        yield Change(
            title=f"{batches} ({source.place(call)})",
            results=Results.ROUNDED,
            why="the same samples in each step, unless the loss weighs them by their lengths",
            costs="smaller GPU kernels, so a step takes longer",
            only_if_measured=True,
            edits=(
                source.with_argument(
                    call, "per_device_train_batch_size", str(size // factor)
                ),
                source.with_argument(
                    call, "gradient_accumulation_steps", str(factor * before)
                ),
            ),
        )


def _checkpointed_model(source: SourceFile, assign: cst.Assign) -> Iterator[Change]:
    """gradient_checkpointing_enable() behind a model of transformers."""
    text = source.text.decode()
    if "transformers" not in text or "gradient_checkpointing" in text:
        return
    models = [
        call
        for call in source.find(cst.Call, assign.value)
        if MODELS.search(called(call))
    ]
    target = source.code(assign.targets[0].target)
    if not models or not re.fullmatch(r"[\w.]+", target):
        return
    statement = source.statement(assign)
    yield Change(
        title=f"Recompute each block in the backward pass ({source.place(assign)})",
        results=Results.SAME,
        why=SAME_AGAIN,
        costs=RECOMPUTED,
        edits=(
            source.lines_after(statement, f"{target}.gradient_checkpointing_enable()"),
        ),
    )


def _back_to_training(program: Program) -> Iterator[Change]:
    """Checkpointing that is on without effect, since an evaluation left the model in its mode."""
    idle = program.facts.idle_checkpointing
    if idle is None or not idle.where:
        return
    for source, line in program.places([idle.where]):
        for statement in source.statements_at(line):
            for call in source.calls("eval", below=statement):
                model = source.code(call.func).removesuffix(".eval")
                function = source.around(statement, cst.FunctionDef)
                if function is None:
                    continue
                last = function.body.body[-1]
                train = f"{model}.train()"
                ends = isinstance(last, cst.SimpleStatementLine) and isinstance(
                    last.body[-1], cst.Return
                )
                edit = (
                    source.lines_before(last, train)
                    if ends
                    else source.lines_after(last, train)
                )
                yield Change(
                    title=f"Switch back to training after the evaluation ({source.place(last)})",
                    results=Results.ROUNDED,
                    why="unless the model has dropout or batch statistics, which are active again",
                    costs=RECOMPUTED,
                    edits=(edit,),
                    only_if_measured=True,
                )

"""What libraries change by their own arguments: transformers' Trainer, Lightning, peft."""

from __future__ import annotations

import re

import libcst as cst

from helpers.fix.change import ANOTHER_RATE, Change, Changes, Results
from helpers.fix.precision import OTHER_NUMBERS
from helpers.fix.program import Located, Program
from helpers.fix.recomputed import RECOMPUTED, SAME_AGAIN
from helpers.fix.source import SourceFile, called, is_return, keyword

TRAINING = re.compile(r"TrainingArguments$|^(SFT|DPO|ORPO|KTO|PPO|GRPO|Reward)Config$")
"""Classes that hold the arguments of a training, of transformers and trl."""
MODELS = re.compile(
    r"^from_pretrained$|^from_config$|LMHeadModel$"
    r"|For(CausalLM|SequenceClassification|ConditionalGeneration)$"
)
"""Functions and classes that make a model of transformers."""
BATCH_SIZE = "per_device_train_batch_size"
ACCUMULATED = "gradient_accumulation_steps"
FACTORS = (2, 4, 8)
"""By what a batch is divided; so many times more batches are accumulated before a step."""
FASTER = "nothing; it is faster"


def results_kept_by_arguments(program: Program) -> Changes:
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


def results_changed_by_arguments(program: Program) -> Changes:
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
        if "lightning" in source.content and not keyword(call, "precision"):
            yield _with_argument(
                source,
                call,
                "precision",
                '"bf16-mixed"',
                Results.OTHER,
                OTHER_NUMBERS,
                FASTER,
            )


def _training(program: Program) -> Located[cst.Call]:
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
    """A keyword argument of a call, set or added, as a change."""
    return Change(
        title=f"{called(call)}({name}={value}) ({source.place(call)})",
        results=results,
        why=why,
        costs=costs,
        edits=(source.with_argument(call, name, value),),
    )


def _accumulated(source: SourceFile, call: cst.Call) -> Changes:
    """A smaller batch per device, and as many more of them before each step."""
    batch_size = _number(source, call, BATCH_SIZE, default=8)
    accumulated = _number(source, call, ACCUMULATED, default=1)
    for factor in FACTORS:
        if batch_size % factor:
            return
        smaller = batch_size // factor
        more = accumulated * factor
        yield Change(
            title=f"Batches of {smaller}, {more} of them in each step ({source.place(call)})",
            results=Results.ROUNDED,
            why="the same samples in each step, unless the loss weighs them by their lengths",
            costs="smaller GPU kernels, so a step takes longer",
            only_if_measured=True,
            edits=(
                source.with_argument(call, BATCH_SIZE, str(smaller)),
                source.with_argument(call, ACCUMULATED, str(more)),
            ),
        )


def _number(source: SourceFile, call: cst.Call, name: str, default: int) -> int:
    """The whole number that a call is given; ``default`` where it is given none."""
    text = source.argument(call, name)
    return int(text) if text.isdigit() else default


def _checkpointed_model(source: SourceFile, assign: cst.Assign) -> Changes:
    """gradient_checkpointing_enable() behind a model of transformers."""
    text = source.content
    if "transformers" not in text or "gradient_checkpointing" in text:
        return
    target = source.target(assign)
    makes_model = any(map(MODELS.search, source.names_called(assign.value)))
    if not makes_model or not re.fullmatch(r"[\w.]+", target):
        return
    line = f"{target}.gradient_checkpointing_enable()"
    yield Change(
        title=f"Recompute each block in the backward pass ({source.place(assign)})",
        results=Results.SAME,
        why=SAME_AGAIN,
        costs=RECOMPUTED,
        edits=(source.lines_after(source.statement(assign), line),),
    )


def _back_to_training(program: Program) -> Changes:
    """Checkpointing that is on without effect, since an evaluation left the model in eval mode."""
    idle = program.facts.idle_checkpointing
    if idle is None or not idle.where:
        return
    for source, statement in program.statements_at([idle.where]):
        function = source.around(statement, cst.FunctionDef)
        if function is None:
            continue
        last = function.body.body[-1]
        for call in source.calls("eval", below=statement):
            model = source.code(call.func).removesuffix(".eval")
            train = f"{model}.train()"
            if is_return(last):
                edit = source.lines_before(last, train)
            else:
                edit = source.lines_after(last, train)
            yield Change(
                title=f"Switch back to training after the evaluation ({source.place(last)})",
                results=Results.ROUNDED,
                why="unless the model has dropout or batch statistics, which are active again",
                costs=RECOMPUTED,
                edits=(edit,),
                only_if_measured=True,
            )

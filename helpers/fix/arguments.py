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
DEFAULTS = {BATCH_SIZE: 8, ACCUMULATED: 1}
"""What these arguments are where a program does not give them (transformers, training_args.py)."""
FACTORS = (2, 4, 8)
"""By what a batch is divided; so many times more batches are accumulated before a step. Powers of
two, so where one does not divide a batch, neither do those that follow.
"""
FASTER = "nothing; it is faster"


def results_kept_by_arguments(program: Program) -> Changes:
    """Arguments of libraries that leave the results as they are, up to rounding."""
    yield from _back_to_training(program)
    for source, call in _training(program):
        if not keyword(call, "gradient_checkpointing"):
            name = "gradient_checkpointing"
            yield _with_argument(
                source, call, name, "True", why=SAME_AGAIN, costs=RECOMPUTED
            )
        has_evaluation = source.calls("evaluate", "predict")
        evaluates = keyword(call, "eval_strategy") or has_evaluation
        # Else the Trainer collects the outputs of a whole evaluation on the GPU.
        if evaluates and not keyword(call, "eval_accumulation_steps"):
            yield _with_argument(
                source,
                call,
                "eval_accumulation_steps",
                "1",
                why="the same outputs, moved to the CPU after each step",
                costs="a transfer per step",
            )
        yield from _accumulated(source, call)
    for source, assign in program.find(cst.Assign):
        yield from _checkpointed_model(source, assign)


def results_changed_by_arguments(program: Program) -> Changes:
    """Arguments of libraries that change the training."""
    for source, call in _training(program):
        yield _with_argument(
            source,
            call,
            "optim",
            '"adafactor"',
            why="another optimizer trains differently",
            costs=ANOTHER_RATE,
            results=Results.OTHER,
        )
        if not keyword(call, "bf16") and not keyword(call, "fp16"):
            yield _in_bfloat16(source, call, "bf16", "True")
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
        # transformers has a Trainer, too, whose arguments _training finds.
        if "lightning" in source.content and not keyword(call, "precision"):
            yield _in_bfloat16(source, call, "precision", '"bf16-mixed"')


def _training(program: Program) -> Located[cst.Call]:
    """The calls that make the arguments of a training of transformers or trl."""
    for source, call in program.find(cst.Call):
        if TRAINING.search(called(call)):
            yield source, call


def _in_bfloat16(source: SourceFile, call: cst.Call, name: str, value: str) -> Change:
    """The argument of a trainer with which it computes in bfloat16."""
    return _with_argument(
        source,
        call,
        name,
        value,
        why=OTHER_NUMBERS,
        costs=FASTER,
        results=Results.OTHER,
    )


def _with_argument(
    source: SourceFile,
    call: cst.Call,
    name: str,
    value: str,
    *,
    why: str,
    costs: str,
    results: Results = Results.SAME,
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
    """A smaller batch per device, and as many times more batches before each step: a change for
    each of FACTORS that divides the batch.
    """
    batch_size = _number(source, call, BATCH_SIZE)
    accumulated = _number(source, call, ACCUMULATED)
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


def _number(source: SourceFile, call: cst.Call, name: str) -> int:
    """The whole number that a call is given for an argument; its default where it gives none, or
    an expression that is no literal.
    """
    text = source.argument(call, name)
    if text.isdigit():
        return int(text)
    return DEFAULTS[name]


def _checkpointed_model(source: SourceFile, assign: cst.Assign) -> Changes:
    """gradient_checkpointing_enable() after the assignment that makes a model of transformers.
    Nothing where the file names gradient_checkpointing already.
    """
    text = source.content
    if "transformers" not in text or "gradient_checkpointing" in text:
        return
    target = source.target(assign)
    makes_model = any(map(MODELS.search, source.names_called(assign.value)))
    is_variable = re.fullmatch(r"[\w.]+", target)  # or an attribute: model, self.model
    if not makes_model or not is_variable:
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
    """``model.train()`` at the end of a function that calls ``model.eval()``: in eval mode the
    checkpointing of transformers has no effect.
    """
    idle = program.facts.idle_checkpointing
    if idle is None or not idle.where:
        return
    for source, statement in program.statements_at([idle.where]):
        function = source.around(statement, cst.FunctionDef)
        if function is None:
            continue
        last = function.body.body[-1]
        for call in source.calls("eval", below=statement):
            # The object whose eval() is called: of ``self.model.eval()`` self.model.
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

"""`rehearse --against-commit`: the peak of a program as it is now beside that at a commit."""

from pathlib import Path

from helpers.allocator.record import under
from helpers.commands.compare import print_moved, share_of, what_moved
from helpers.commands.recording import recorded
from helpers.commands.rehearse_bench import RehearsalBench
from helpers.ground.places import OUTPUTS
from helpers.rehearse import commits, github
from helpers.rehearse.rehearsal import Rehearsal
from helpers.trials.user_program import check_script


def compare_with_commit(bench: RehearsalBench) -> int:
    """Rehearse the program at a commit and as it is now, and print what changed at the peak.

    Returns the exit code: 1 where the peak rose by more than --allow.
    """
    arguments = bench.arguments
    allowed = share_of(arguments.allow)
    ref = arguments.against_commit
    words = under(arguments.torch_python, bench.command)

    def run(words: list[str], trace: Path) -> Rehearsal:
        log = trace.with_suffix(".log")
        # The words name the Python already.
        return bench.run(words, bench.card, trace, python="", log=log)

    with commits.checked_out(ref, OUTPUTS) as (commit, folder):
        words_then = commits.as_it_was(words, folder)
        check_script(words_then, folder, f"at {ref} ({commit})")

        def both_traces(out: Path) -> tuple[Path, Path]:
            earlier_out = out.with_stem(f"{out.stem}-{commit}")
            before = commits.rehearsed(run, words_then, folder, earlier_out)
            after = commits.rehearsed(run, words, Path.cwd(), out)
            return before, after

        before, after = recorded(arguments, "rehearsal", both_traces)
        sources = (commits.sources(folder), commits.sources(Path.cwd()))
    moved = what_moved(before, after, sources)
    names = (f"{ref} ({commit}): {before}", f"as it is now: {after}")
    is_above = print_moved(moved, names, allowed, arguments.json)
    if arguments.github:
        github.report(moved, is_above, ref, bench.card.total_bytes)
    return int(is_above)

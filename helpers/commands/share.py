"""The command that writes a page for others: share."""

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from helpers.commands.batch import named_batch, own_file
from helpers.commands.use import WrongUse, print_json
from helpers.ground.places import OUTPUTS
from helpers.ground.shell import word
from helpers.look.files import write_atomic
from helpers.share import (
    TRACKERS,
    issue_text,
    page_of,
    read_choices,
    review_of,
    subject_of,
    whom_to_ask,
)
from helpers.share.subject import Subject
from helpers.tell.pdf import write_pdf

UNKNOWN_CHOICES = (
    "Choices that match no text here: {}. The text has changed, or the choices are for another page. "
    "Review again, with the other ticks kept: --review --include"
)


def share(arguments: Namespace) -> int:
    """Write a page for others of a batch, a run, a notebook, a bundle or a recording: only typed
    results, and the texts you tick.

    [target]: a batch or a run's folder, by its path or by its name below outputs; an .ipynb, a
        bundle, the .pickle of record or rehearse, or a recorded box (default: the newest batch)
    --out FILE: the page (default: outputs/shared/NAME.html)
    --review: write a page for you alone, on which you tick the texts that may be shared
    --include FILE: the choices saved on the --review page; with --review, tick them again
    --pdf: also write a PDF, with this machine's Chromium
    --issue TRACKER: also write a report for rocm, rocm-systems, pytorch or linux-amdgpu
    --force: replace files that are there
    Example: share 20260301T210000Z-quick --issue rocm
    """
    # Figures are drawn in this process; without this, matplotlib writes its list of fonts at home.
    os.environ.setdefault("MPLCONFIGDIR", str(OUTPUTS / "cache" / "matplotlib"))
    _refuse_wrong_use(arguments)
    if arguments.target:
        target = own_file(arguments.target)
    else:
        target = named_batch("")
    has_texts = bool(arguments.review or arguments.include)
    about = subject_of(target, with_notebooks=has_texts)
    choices = _choices(about, arguments.include)
    if arguments.review:
        return _review(about, target, choices, arguments)
    answer = _write_page(about, choices, arguments)
    if about.no_bundle:
        print(f"Without a box: {about.no_bundle}", file=sys.stderr)
    print(answer["left_out"], file=sys.stderr)
    if arguments.json:
        print_json(answer)
        return 0
    print(f"Open: {answer['page']}")
    if answer.get("whom_to_ask"):
        print(f"Before you send the issue: {answer['whom_to_ask']}.")
    for name in ("pdf", "issue"):
        if name in answer:
            print(f"{name}: {answer[name]}")
    return 0


def _refuse_wrong_use(arguments: Namespace) -> None:
    """Raises WrongUse for an unknown tracker, and for an --out that is no .html file in
    a folder.
    """
    tracker = arguments.issue
    if tracker and tracker not in TRACKERS:
        raise WrongUse(f"--issue {tracker}: expected one of {', '.join(TRACKERS)}")
    if not arguments.out:
        return
    out = Path(arguments.out)
    if not out.parent.is_dir() or out.suffix != ".html":
        expected = "expected a file that ends in .html, in an existing folder"
        raise WrongUse(f"--out {out}: {expected}")


def _choices(about: Subject, path: str) -> frozenset[str]:
    """The digests of the texts that were ticked, from a file of choices; none without a ``path``.

    Standard error says how many of them match no text of this subject.
    """
    if not path:
        return frozenset()
    choices: frozenset[str] = read_choices(Path(path))
    unknown = review_of(about).unknown(choices)
    if unknown:
        print(UNKNOWN_CHOICES.format(unknown), file=sys.stderr)
    return choices


def _write_page(
    about: Subject, choices: frozenset[str], arguments: Namespace
) -> dict[str, Any]:
    """Write the page, its PDF and the tracker's report. Returns what --json prints about them."""
    tracker = arguments.issue
    shared = page_of(about, choices)
    if arguments.out:
        out = Path(arguments.out)
    else:
        out = _place(shared.name)
    pdf = out.with_suffix(".pdf")
    report = out.with_name(f"{out.stem}.{tracker}.md")
    files = [out]
    if arguments.pdf:
        files.append(pdf)
    if tracker:
        files.append(report)
    _refuse_to_overwrite(files, force=arguments.force)
    write_atomic(out, shared.html)
    answer: dict[str, Any] = {
        "page": str(out),
        "bytes": len(shared.html.encode()),
        "left_out": shared.left_out,
    }
    if arguments.pdf:
        print("Chromium prints the PDF; this can take a minute.", file=sys.stderr)
        why_not = write_pdf(out, pdf)
        answer["pdf"] = str(pdf)
        if why_not:
            answer["pdf"] = f"not available because {why_not}"
    if tracker:
        write_atomic(report, issue_text(tracker, about))
        answer["issue"] = str(report)
        answer["whom_to_ask"] = whom_to_ask(tracker, about.verdict)
    return answer


def _review(
    about: Subject, target: Path, choices: frozenset[str], arguments: Namespace
) -> int:
    """Write the page on which the owner ticks texts; ``choices`` are ticked already.
    The exit code.
    """
    out = _place(f"{about.name}.review")
    if arguments.out:
        out = Path(arguments.out)
        _refuse_to_overwrite([out], force=arguments.force)
    review = review_of(about)
    command = f"casebook share {word(str(target))}"
    # The page has all texts, so no other user may read it.
    earlier_umask = os.umask(0o077)
    try:
        write_atomic(out, review.html(choices, command))
    finally:
        os.umask(earlier_umask)
    if arguments.json:
        print_json({"review": str(out), "texts": len(review.rows)})
        return 0
    print(f"Open: {out}")
    print(f"Then: {command} --include CHOICES")
    return 0


def _refuse_to_overwrite(files: list[Path], force: bool) -> None:
    """Raise WrongUse where one of the files exists already, unless ``force`` allows to
    replace it.
    """
    # A broken link does not exist, but writing would follow or replace it.
    existing = [path for path in files if path.exists() or path.is_symlink()]
    if existing and not force:
        raise WrongUse(
            f"{existing[0]}: already there; choose another --out or add --force"
        )


def _place(name: str) -> Path:
    """The file for a page of that name in outputs/shared, a folder that is made here."""
    folder = OUTPUTS / "shared"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.html"

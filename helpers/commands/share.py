"""The command that makes what may leave the box: share."""

from __future__ import annotations

import argparse
import hashlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.batch import named_batch
from helpers.commands.use import OUTPUTS, WrongUse, listed, print_json, say
from helpers.ground.child import CHECKOUT
from helpers.tell.shown import Shown, words, wrapped

if TYPE_CHECKING:
    from helpers.share.page import Subject
    from helpers.tell.redact_known import Known


def share(arguments: argparse.Namespace) -> int:
    """One page of a batch, a run or a notebook for others: redacted, and what was redacted is listed.

    [target]: a batch, a run's folder or an .ipynb (default: the newest batch)
    --out FILE: the page (default: outputs/shared/NAME.html)
    --pdf: a PDF beside it, through a Chromium of this machine
    --issue TRACKER: a report beside it and the redacted bundle it names: rocm, rocm-systems, pytorch, linux-amdgpu
    --as-is: do not redact
    --allow-binary: keep what cannot be read for sure
    --allow-found: write it although the second scan found something
    --force: replace files that are there
    Example: share outputs/20260301T210000Z-quick --issue rocm
    """
    from helpers.look.files import write_atomic
    from helpers.share import page as share
    from helpers.share.issue_text import TRACKERS
    from helpers.tell.page import write_pdf

    if arguments.issue and arguments.issue not in TRACKERS:
        raise WrongUse(f"--issue {arguments.issue}: expected one of {', '.join(TRACKERS)}")
    page = Path(arguments.out)
    if arguments.out and not (page.parent.is_dir() and page.suffix == ".html"):
        expected = "expected a file that ends in .html, in a folder that is there"
        raise WrongUse(f"--out {page}: {expected}")
    about = share.subject(Path(arguments.target) if arguments.target else named_batch(""))
    known = None if arguments.as_is else share.known_of(about)
    made = share.page(about, known, arguments.allow_binary)
    out = page if arguments.out else _place(made.name)
    pdf = [out.with_suffix(".pdf")] if arguments.pdf else []
    files = [out, *pdf, *_issue_files(out, arguments.issue)]
    there = [path for path in files if path.exists() or path.is_symlink()]
    if there and not arguments.force:
        raise WrongUse(f"{there[0]}: already there; choose another --out or add --force")
    unsafe = out.with_suffix(".unsafe.html")
    if known is not None:
        if isinstance(made.scan, list) and made.scan and not arguments.allow_found:
            write_atomic(unsafe, share.marked(made.html, made.scan))
        _refuse_found(arguments, made.scan, f"marked in {unsafe}, which is not for others")
    write_atomic(out, made.html)
    unsafe.unlink(missing_ok=True)
    answer: dict[str, Any] = {"page": str(out), "bytes": len(made.html.encode())}
    answer.update(redacted=known is not None, report=made.lines())
    if pdf:
        why = write_pdf(out, pdf[0])
        answer["pdf"] = f"not available because {why}" if why else str(pdf[0])
    if arguments.issue:
        answer["issue"], answer["bundle"] = _issue(arguments, about, known, out)
    print("\n".join(row for one in made.lines() for row in wrapped(one, "", "  ")), file=sys.stderr)
    if arguments.json:
        print_json(answer)
        return 0
    for name in ("page", "pdf", "issue", "bundle"):
        if name in answer:
            print(f"{'Open' if name == 'page' else name}: {answer[name]}")
    return 0


def _refuse_found(arguments: argparse.Namespace, scan: Any, what: str) -> None:
    """Raise WrongUse where the second scan found something and nobody has allowed that."""
    if isinstance(scan, list) and scan and not arguments.allow_found:
        advice = "look at it, then --allow-found"
        raise WrongUse(f"the second scan found {len(scan)}: {scan[0]}; {what}; {advice}")


def _place(name: str) -> Path:
    folder = OUTPUTS / "shared"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.html"


def _issue_files(out: Path, tracker: str) -> list[Path]:
    names = (f"{out.stem}.{tracker}.md", f"{out.stem}.bundle.tar.gz")
    return [out.with_name(name) for name in names] if tracker else []


def _issue(
    arguments: argparse.Namespace, about: Subject, known: Known | None, out: Path
) -> tuple[str, str]:
    """Write the report and the bundle that goes with it; both paths, or why there is no bundle."""
    from helpers.look.archive import BundleError
    from helpers.look.bundle import open_bundle
    from helpers.look.files import write_atomic
    from helpers.share.issue_text import Case, issue_text
    from helpers.tell.redact import redact_bundle, second_scan
    from helpers.tell.redact_text import redact_text

    text_file, bundle_file = _issue_files(out, arguments.issue)
    evidence = ""
    where = f"not available because {about.no_bundle}"
    if about.bundle and known is not None:
        try:
            allowed = (arguments.allow_binary, arguments.allow_found, arguments.force)
            redact_bundle(about.bundle, bundle_file, known, *allowed)
            digest = hashlib.sha256(bundle_file.read_bytes()).hexdigest()
            evidence = f"Evidence bundle: `{bundle_file.name}`, redacted, SHA-256 `{digest}`"
            where = str(bundle_file)
        except BundleError as error:
            where = f"not available because {error}"
            why = "it holds members that cannot be redacted"
            evidence = f"Evidence bundle: not available because {why}"
    elif about.bundle:
        where = evidence = "not available because --as-is makes no copy of a bundle"
    bundle = open_bundle(about.bundle) if about.bundle else None
    case = Case(about.verdict, bundle, about.no_bundle, about.steps, evidence, about.error)
    text = issue_text(arguments.issue, case)
    if known is not None:
        text = redact_text(text, known)
        _refuse_found(arguments, second_scan({"issue": text}), "the report was not written")
    write_atomic(text_file, text)
    return str(text_file), where


# Commands about the workbook itself: schema, and its own figures, bench.

SHAPES: dict[str, tuple[str, str]] = words("shapes")
"""Where each is defined, and what it is."""


def schema_text(name: str) -> str:
    """The JSON Schema of one of SHAPES (draft 2020-12), as text."""
    from pydantic import TypeAdapter

    content = TypeAdapter(pkgutil.resolve_name(SHAPES[name][0])).json_schema()
    return json.dumps(content, indent=1, sort_keys=True)


def schema(arguments: argparse.Namespace) -> int:
    """The JSON Schema of a shape that commands print and files hold.

    [shape]: one shape (default: their names, and what each is)
    Example: schema run
    """
    if arguments.shape and arguments.shape not in SHAPES:
        raise WrongUse(f"schema {arguments.shape!r}: expected one of {', '.join(SHAPES)}")
    if arguments.shape:
        print(schema_text(arguments.shape))
        return 0
    return say(arguments, list(SHAPES), *(listed(name, row[1]) for name, row in SHAPES.items()))


def bench(arguments: argparse.Namespace) -> int:
    """Figures as ratios within one run.

    [what ...]: which: capture, imports, judge, batch, replay, vpoc, monitor (default: all)
    Example: bench replay
    """
    import runpy

    program = CHECKOUT / "tests" / "bench.py"
    if not program.is_file():
        raise WrongUse(f"bench: there is no {program}; it needs a checkout: run it in one")

    figures = runpy.run_path(str(program))
    unknown = [name for name in arguments.what if name not in figures["FIGURES"]]
    if unknown:
        raise WrongUse(f"bench {unknown[0]}: expected some of {', '.join(figures['FIGURES'])}")
    measured = figures["measure"](arguments.what)
    columns = ["name", "value", "unit", "ratio_to", "ratio", "goal"]
    rows = [[row[name] for name in columns] for row in measured]
    return say(arguments, measured, Shown("", columns, rows, widest=None))


VERBS = (share, schema, bench)

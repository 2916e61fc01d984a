"""`python -m benchmarks [SUBJECT ...]`: measure, and write `benchmarks/results.json`.

This process imports nothing heavy: every subject runs in a process of its own, whose peak memory
would otherwise start from this one's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import children, files


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; return 0, or 2 with one line on what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="SUBJECT",
        help=f"{', '.join(MEASURES)}; default: all but {' and '.join(OF_THE_BOOK)}",
    )
    parser.add_argument("--out", type=Path, default=files.PATH, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each race")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the tool")
    options = parser.parse_args(arguments)
    subjects = options.subjects or [name for name in MEASURES if name not in OF_THE_BOOK]
    try:
        if unknown := set(subjects) - set(MEASURES):
            raise ValueError(f"unknown subject {min(unknown)!r}; choose from {', '.join(MEASURES)}")
        machine = children.call("machine:describe", threads=None)
        for subject in subjects:
            print(f"{subject} ...", file=sys.stderr, flush=True)
            measured = MEASURES[subject](options)
            files.merge(options.out, machine, measured)
    except (ValueError, OSError, children.ChildFailed) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    print(f"written: {options.out}", file=sys.stderr)
    return 0


def _training(options: argparse.Namespace) -> dict[str, Any]:
    values = {"repeats": options.repeats, "effort": 0.05 if options.quick else 1.0}
    sizes = [1, 32] if options.quick else [1, 8, 32, 160]
    one = children.call("training:measure", sizes=sizes, **values)
    two = children.call("training:measure", threads=2, sizes=[32], **values)
    return {"training": one, "training_two_threads": two}


def _evaluation(options: argparse.Namespace) -> dict[str, Any]:
    lengths = [256, 4_096, 16_384] if options.quick else [256, 4_096, 65_536, 1_048_576]
    values = {"n_sequences": 100 if options.quick else 2_000, "repeats": options.repeats}

    def call(threads: int, n_models: int, lengths: list[int]) -> dict[str, Any]:
        return children.call(
            "evaluation:measure",
            threads=threads,
            limit_gb=children.LIMIT_GB,
            n_models=n_models,
            lengths=lengths,
            **values,
        )

    return {
        "evaluation": call(1, 8, lengths),
        "evaluation_one_model": call(1, 1, lengths[:2]),
        "evaluation_two_threads": call(2, 8, lengths[:1]),
    }


def _transformer(options: argparse.Namespace) -> dict[str, Any]:
    values = {"repeats": options.repeats, "effort": 0.1 if options.quick else 1.0}
    one = children.call("transformer:measure", sizes=[1, 5], **values)
    two = children.call("transformer:measure", threads=2, sizes=[5], **values)
    return {"transformer": one, "transformer_two_threads": two}


def _dilution(options: argparse.Namespace) -> dict[str, Any]:
    lengths = [256, 1_024] if options.quick else [256, 1_024, 4_096]
    samples = 4_000 if options.quick else 8_000
    values = {"n_models": 8, "lengths": lengths, "n_samples": samples}
    return {"dilution": children.call("dilution:measure", repeats=options.repeats, **values)}


def _builds(options: argparse.Namespace) -> dict[str, Any]:
    return {"builds": children.call("book:builds", threads=None)}


def _pages(options: argparse.Namespace) -> dict[str, Any]:
    return {"pages": children.call("book:pages", threads=None, repeats=options.repeats)}


MEASURES = {
    "training": _training,
    "evaluation": _evaluation,
    "transformer": _transformer,
    "dilution": _dilution,
    "builds": _builds,
    "pages": _pages,
}
OF_THE_BOOK = ("builds", "pages")

if __name__ == "__main__":
    sys.exit(main())

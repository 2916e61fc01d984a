"""What every chapter does around its subject: the look, frozen results, their provenance."""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import HTML
from matplotlib_inline.backend_inline import set_matplotlib_formats

from lengthgen import figures
from lengthgen.claims import CLAIMS, WORDS, check_claims
from lengthgen.results import Result, project_root

__all__ = [
    "agreement",
    "at_least",
    "at_most",
    "begin",
    "count",
    "difference",
    "frozen",
    "glue_all",
    "ledger",
    "provenance",
    "table",
]


def begin() -> None:
    """Give the notebook's pictures the book's look, as SVG that does not change between builds."""
    set_matplotlib_formats("svg", bbox_inches="tight", metadata={"Date": None})
    plt.rcParams.update(figures.SETTINGS)


def frozen(name: str) -> Result:
    """Return an experiment's frozen result: the full profile, as kept in `results/`.

    Raises:
        FileNotFoundError: there is none; says how to make it.
    """
    path = project_root() / "results" / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(
            f"no {path}: clone the whole repository, or run `lengthgen reproduce {name}`"
        )
    return _loaded(path, path.stat().st_mtime_ns)


@functools.lru_cache
def _loaded(path: Path, edited: int) -> Result:
    """Read a result once, and again when its file has changed."""
    return Result.load(path)


def provenance(*results: Result) -> HTML:
    """Return a line that says where frozen numbers come from, with links to the data."""
    parts = []
    for result in results:
        name, environment = html.escape(result.experiment), result.environment
        profile = "full" if result.profile == "paper" else result.profile
        parts.append(
            f'<a href="../results/{name}.json">{name}.json</a>: {profile} profile, '
            f"{len(result.rows):,} rows, seeds {min(result.seeds)} to {max(result.seeds)}, "
            f"code {environment['code']}, PyTorch {environment['torch']}; "
            f"again with <code>lengthgen selfcheck {name}</code>"
        )
    return HTML('<p class="lg-static">' + "<br>".join(parts) + "</p>")


CELL = ("setting", "encoding", "offset", "seed", "length", "n_sequences")
"""What names a measurement of accuracy; a row without one of them has `None` there."""


def agreement(
    fresh: Iterable[Mapping[str, Any]],
    kept: Iterable[Mapping[str, Any]],
    value: str = "accuracy",
    cell: Sequence[str] = CELL,
) -> tuple[int, float]:
    """Compare numbers computed now with frozen ones.

    Args:
        fresh: rows computed now.
        kept: frozen rows.
        value: the column to compare.
        cell: the columns that name a measurement.

    Returns:
        the number of cells that both have, and the largest difference among them.

    Raises:
        ValueError: no cell in common, or a cell that stands twice in the frozen rows.
    """
    named = [(tuple(row.get(c) for c in cell), row[value]) for row in kept if value in row]
    table = dict(named)
    if len(table) < len(named):
        raise ValueError(f"{', '.join(cell)} do not tell the frozen rows apart: name more columns")
    now = [(tuple(row.get(c) for c in cell), row[value]) for row in fresh if value in row]
    pairs = [(number, table[key]) for key, number in now if key in table]
    if not pairs:
        raise ValueError("no row in common: compare results of the same experiment")
    return len(pairs), max(abs(a - b) for a, b in pairs)


def difference(value: float | int) -> str:
    """Return the words for the size of a difference: to one digit, or that there is none.

    Examples:
        >>> difference(0.0), difference(-3.2e-8)
        ('identical', '3e-08')
    """
    return f"{abs(value):.0e}" if value else "identical"


def at_least(value: float | int, form: str) -> str:
    """Return a lower bound of a number, formatted: rounded down in the last digit.

    Example:
        >>> at_least(0.999599, ".5f")
        '0.99959'
    """
    return _rounded(value, form, ROUND_FLOOR)


def at_most(value: float | int, form: str) -> str:
    """Return an upper bound of a number, formatted: rounded up in the last digit.

    Examples:
        >>> at_most(0.05742, ".1%"), at_most(7.21e-7, ".1e"), at_most(0.9, ".2f")
        ('5.8%', '7.3e-07', '0.90')
    """
    return _rounded(value, form, ROUND_CEILING)


def _rounded(value: float | int, form: str, rounding: str) -> str:
    with localcontext(rounding=rounding):
        text = format(Decimal(repr(float(value))), form)  # of the digits that Python prints
    digits, exponential, power = text.partition("e")
    return f"{digits}e{int(power):+03}" if exponential else text


def count(k: int, n: int) -> str:
    """Return the words for `k` of `n` things, few enough to count.

    Raises:
        ValueError: `k` is not from 0 to `n`, or there are no things.

    Examples:
        >>> count(0, 20), count(7, 20), count(20, 20), count(880, 1000)
        ('none of 20', '7 of 20', 'all 20', '880 of 1,000')
    """
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no count")
    if k == n:
        return f"all {n:,}"
    return f"{k:,} of {n:,}" if k else f"none of {n:,}"


def table(heads: Iterable[Any], rows: Iterable[Iterable[Any]], name: str = "") -> HTML:
    """Return a table whose first column names the rows; wide ones scroll in their own box.

    Every part says its role and every cell the head of its column, so that the style sheet may
    lay the rows of a table out as cards.

    Args:
        heads: of the columns.
        rows: of HTML.
        name: of its class in the style sheet, beside `table`.
    """
    _, *labels = heads = list(heads)
    head = "".join(f'<th scope="col" role="columnheader">{cell}</th>' for cell in heads)
    lines = []
    for first, *rest in rows:
        cells = "".join(
            f'<td role="cell" data-label="{html.escape(str(label))}">{cell}</td>'
            for label, cell in zip(labels, rest, strict=True)
        )
        lines.append(f'<tr role="row"><th scope="row" role="rowheader">{first}</th>{cells}</tr>')
    return HTML(
        f'<div class="pst-scrollable-table-container">'
        f'<table class="{f"table {name}".strip()}" role="table">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(lines)}</tbody></table></div>'
    )


def glue_all(prefix: str, values: Mapping[str, Any]) -> None:
    """Make numbers available to the prose as `PREFIX-NAME`."""
    from myst_nb import glue  # only the book needs it

    for name, value in values.items():
        glue(f"{prefix}-{name}", value, display=False)


def ledger(prefix: str) -> HTML:
    """Return the claims of one prefix, held against the frozen results, as a table.

    Raises:
        ValueError: no claim has this prefix.
    """
    own = tuple(claim for claim in CLAIMS if claim.id.startswith(f"{prefix}."))
    if not own:
        prefixes = sorted({claim.id.split(".")[0] for claim in CLAIMS})
        raise ValueError(f"no claim starts with {prefix!r}; choose from {', '.join(prefixes)}")
    results = {name: frozen(name) for name in {claim.experiment for claim in own}}
    rows = []
    for verdict in check_claims(project_root() / "results", own, results):
        name = html.escape(verdict.experiment)
        seeds = len(results[verdict.experiment].seeds)
        rows.append(
            (
                f"{html.escape(verdict.statement)}<br><code>{html.escape(verdict.id)}</code>",
                html.escape(verdict.source),
                f"{verdict.value:.4g}",
                html.escape(verdict.criterion.replace(">=", "≥").replace("<=", "≤")),
                f"<strong>{WORDS[verdict.passed]}</strong>",
                f'<a href="../results/{name}.json">{name}</a> '
                f"(result of {seeds} seed{'s' * (seeds > 1)})",
            )
        )
    heads = ("claim", "source", "value", "criterion", "verdict", "data")
    return table(heads, rows, "lg-ledger")

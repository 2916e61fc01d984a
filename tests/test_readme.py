"""The README's example runs as printed and does what the text under it says."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_of_an_own_encoding(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 10
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    card = names["card"]
    assert card.text in capsys.readouterr().out
    assert card.verdict == "does-not-fit"
    assert card.equivariance_error < 1e-6
    window, beyond = card.kernel[:4], card.kernel[4:]
    assert min(window) - max(beyond) > 5  # the bias of 10, and what the tokens add on average
    # A window of four tokens: right once in four, or twice where the query's token is ruled out.
    accuracies = [row["accuracy"] for row in card.rows]
    assert min(accuracies) > 0.2 and max(accuracies) < 0.6


def test_every_path_in_the_map_exists():
    rows = re.findall(r"^\| (`[^|]+) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    paths = [name for name in names if "/" in name and not name.startswith((".venv", "make"))]
    assert len(paths) > 8
    for path in paths:
        assert (README.parent / path).exists(), path

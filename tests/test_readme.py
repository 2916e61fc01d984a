"""The README's example runs as printed and does what the text under it says."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_the_example_of_an_own_encoding(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out.startswith("tensor(")
    heads = names["heads"]
    table = names["accuracy"](heads, [2, 2], [16, 48, 256], names["TestSequences"](1000))
    assert table.shape == (2, 3)
    assert table.max() < 0.6  # four tokens in the window, none told apart
    # A bias of the offset alone: the same at every length, up to 1,000 sequences' noise.
    assert (table - table[:, :1]).abs().max() < 0.06
    assert torch.isfinite(names["losses"]).all()


def test_every_path_in_the_map_exists():
    rows = re.findall(r"^\| (`[^|]+) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    paths = [name for name in names if "/" in name and not name.startswith((".venv", "make"))]
    assert len(paths) > 8
    for path in paths:
        assert (README.parent / path).exists(), path

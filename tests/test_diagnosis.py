"""The report card: right verdicts on encodings made for it, clear errors, fixed keys."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import lengthgen
from lengthgen.attention import HeadConfig, HeadStack
from lengthgen.cli import main
from lengthgen.contract import check_encoding, load_class
from lengthgen.diagnosis import ReportCard, verdict_of
from lengthgen.encoding_measures import (
    TOLERANCE,
    as_tested,
    equivariance_error,
    wave_alignment,
)
from lengthgen.encodings import ENCODINGS, Rotary
from lengthgen.equivariance import RoundedProductRotary

KEYS = [
    "encoding",
    "rows",
    "equivariance_error",
    "pinning_index",
    "kernel",
    "alignment",
    "dilution_error",
    "verdict",
    "text",
]
SMALL = {"n_seeds": 1, "steps": 2, "n_sequences": 40, "lengths": (16, 48, 64)}


class Table(nn.Module):
    """A learned table, written by hand."""

    def __init__(self, d_model, max_length, generator):
        super().__init__()
        self.rows = nn.Parameter(0.02 * torch.randn(max_length, d_model, generator=generator))

    def embed(self, positions):
        return self.rows[positions]


class WrongSign(Rotary):
    """Keys turn the other way, so that the logit depends on the sum of the positions."""

    def transform_key(self, x, positions):
        return super().transform_key(x, -positions)


class Product:
    """A bias of query and key position that is no function of their difference."""

    def bias(self, query_positions, key_positions):
        return (query_positions[:, None] * key_positions % 7).float()


class Window:
    """A bias of the offset that knows no order among the last four tokens."""

    def bias(self, query_positions, key_positions):
        return -10.0 * (query_positions[:, None] - key_positions > 3)


class KeyOnly:
    """ALiBi as often implemented: the query's part, which the softmax ignores, is left out."""

    def bias(self, query_positions, key_positions):
        return (0.25 * key_positions).expand(len(query_positions), -1)


class WrongShape:
    def embed(self, positions):
        return torch.zeros(len(positions), 7)


class Transposed:
    def bias(self, query_positions, key_positions):
        return torch.zeros(len(key_positions), len(query_positions))


class WrongSignature:
    def bias(self, offsets):
        return offsets


class Raises:
    def transform_query(self, x, positions):
        raise KeyError("cos table")


class NotFinite:
    def bias(self, query_positions, key_positions):
        return (query_positions[:, None] - key_positions).log()  # the query itself: log 0


class HoleInTheMiddle:
    """Fine at the first positions and at the last ones."""

    def embed(self, positions):
        return torch.where(positions == 300, torch.nan, 0.0)[:, None].expand(-1, 32)


class Exits:
    def embed(self, positions):
        raise SystemExit("no more")


class ShortTable(Table):
    """64 rows, and max_length does not say so."""

    def __init__(self, d_model, generator):
        super().__init__(d_model, 64, generator)


class NoTensor:
    def embed(self, positions):
        return [0.0] * len(positions)


class NoHook:
    pass


class Needs:
    def __init__(self, secret):
        self.secret = secret

    bias = Product.bias


@pytest.mark.parametrize(
    ("encoding", "verdict"),
    [(Table, "absolute"), (WrongSign, "not-offset-only"), (Product, "not-offset-only")],
)
def test_structure_decides_first_whether_or_not_heads_fit(encoding, verdict):
    card = lengthgen.diagnose(encoding, **SMALL)
    assert card.verdict == verdict
    assert card.encoding == encoding.__name__
    assert card.equivariance_error > 10 * TOLERANCE
    assert card.dilution_error is None


def test_heads_that_fit_are_relative_and_those_that_cannot_do_not_fit():
    settings = SMALL | {"steps": 250, "n_sequences": 500, "n_seeds": 2}
    relative = lengthgen.diagnose("rotary", **settings)
    blind = lengthgen.diagnose(Window, **settings)
    assert (relative.verdict, blind.verdict) == ("relative", "does-not-fit")
    assert relative.equivariance_error < 1e-12 and blind.equivariance_error < 1e-6
    assert relative.pinning_index == 0
    # The law is exact up to the noise of 500 sequences: 4 standard errors of at most 0.022.
    assert relative.dilution_error < 0.09 and blind.dilution_error < 0.09
    assert relative.alignment > 0.3
    assert relative.kernel.index(max(relative.kernel)) == 2
    assert "2 of 2 seeds" in relative.text and "0 of 2 seeds" in blind.text


def test_what_the_query_alone_adds_is_not_held_against_an_encoding():
    stack = HeadStack.initialize(HeadConfig(KeyOnly), [0])
    assert float(equivariance_error(stack, 1024)) < 1e-12


def test_angles_in_float32_pass_the_tolerance_and_a_trained_table_does_not():
    for encoding, least, most in ((RoundedProductRotary, 1e-9, TOLERANCE / 5), (Table, 0.01, 2.0)):
        stack = HeadStack.initialize(HeadConfig(encoding), [0, 1])
        error = equivariance_error(stack, 1024)
        assert least < float(error.min()) and float(error.max()) < most


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        (WrongShape, ("WrongShape.embed", "(16, 7)", "(16, 32)")),
        (Transposed, ("Transposed.bias", "(14, 3)", "(3, 14)", "query_positions, key_positions")),
        (WrongSignature, ("WrongSignature.bias", "TypeError", "bias(query_positions")),
        (Raises, ("Raises.transform_query", "KeyError", "cos table", "(2, 3, 16, 32)")),
        (NotFinite, ("NotFinite.bias", "not finite", "(3, 14)")),
        (HoleInTheMiddle, ("HoleInTheMiddle.embed", "not finite", "positions 0..1023")),
        (Exits, ("Exits.embed", "SystemExit", "no more")),
        (ShortTable, ("ShortTable.embed", "max_length", "IndexError")),
        (NoTensor, ("NoTensor.embed", "list", "(16, 32)")),
        (NoHook, ("NoHook", "none of the hooks", "transform_query")),
        (Needs, ("Needs.__init__", "secret", "d_model")),
    ],
)
def test_a_fault_of_the_readers_class_names_class_hook_and_shape(encoding, words):
    with pytest.raises(ValueError) as caught:
        lengthgen.diagnose(encoding)
    for word in words:
        assert word in str(caught.value)


def test_other_wrong_arguments():
    for arguments, word in (
        (("rotatory",), "unknown encoding"),
        ((Window(),), "instance of Window"),
        (("rotary", 2), "must be 16"),
    ):
        lengths = (24, 48) if len(arguments) == 2 else (16,)
        with pytest.raises(ValueError, match=word):
            lengthgen.diagnose(*arguments, lengths=lengths)
    for number in ("n_seeds", "steps"):
        with pytest.raises(ValueError, match=f"{number}=0"):
            lengthgen.diagnose("rotary", **{number: 0})
    head = replace(HeadConfig("learned"), max_length=8)
    with pytest.raises(ValueError, match="max_length=8"):
        check_encoding(head, 2, (16,))


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_named_encoding_has_a_card_with_the_fixed_keys_and_no_nan(name):
    card = lengthgen.diagnose(name, **SMALL)
    content = json.loads(card.to_bytes(), parse_constant=pytest.fail)
    assert list(content) == KEYS
    assert card.verdict in ("relative", "absolute", "not-offset-only", "does-not-fit")
    assert [row["length"] for row in card.rows] == [16, 48, 64]
    assert {"encoding", "offset", "seed", "length", "accuracy", "n_sequences"} <= set(card.rows[0])
    assert len(card.kernel) == 64 and abs(sum(card.kernel)) < 1e-3
    absolute = name in ("learned", "learned-random-offset", "sinusoidal")
    assert (card.verdict == "absolute") == absolute


def test_a_constant_kernel_has_no_alignment_and_a_wave_has_the_phase_it_has():
    waves = torch.stack([torch.arange(64).mul(2 * torch.pi * 3 / 64).cos(), torch.zeros(64)])
    at_crest, nothing = wave_alignment(waves, 0)
    assert abs(at_crest - 1) < 1e-5 and nothing is None
    (off_crest,) = wave_alignment(waves[:1], 4)  # a quarter of a turn is 5.33 offsets
    assert abs(off_crest - waves[0, 4]) < 1e-5


def test_an_encoding_with_a_factor_is_stretched_to_the_length_and_not_below_one():
    stack = HeadStack.initialize(HeadConfig("rotary"), [0])
    head = HeadConfig("rotary-interpolated")
    for length, factor in ((10, 1), (16, 1), (64, 4)):
        frequencies = as_tested(stack, head, length, [0]).encodings[0].frequencies
        assert torch.equal(frequencies, stack.encodings[0].frequencies / factor)
    assert as_tested(stack, stack.config, 64, [0]) is stack


def test_verdicts():
    assert verdict_of(2 * TOLERANCE, ["embed", "bias"], 1.0) == "not-offset-only"
    assert verdict_of(0.0, ["transform_query"], 0.75) == "relative"
    assert verdict_of(0.0, ["transform_query"], 0.5) == "does-not-fit"


FILE = """
class Even:
    def bias(self, query_positions, key_positions):
        return -1.0 * ((query_positions[:, None] - key_positions) % 2)


class Other:
    pass
"""


def test_a_class_from_a_file_on_the_command_line(tmp_path, capsys, monkeypatch):
    from lengthgen import cli, diagnosis

    monkeypatch.setattr(cli, "project_root", lambda: tmp_path)
    full = lengthgen.diagnose
    monkeypatch.setattr(diagnosis, "diagnose", lambda *arguments: full(*arguments, **SMALL))
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    assert main(["diagnose", f"{file}:Even", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content) == KEYS and content["verdict"] == "does-not-fit"
    assert main(["diagnose", f"{file}:Even"]) == 0
    printed = capsys.readouterr().out
    assert content["text"] in printed
    for kind in ("json", "png"):
        path = tmp_path / "_build" / "diagnose" / f"Even.{kind}"
        assert path.stat().st_size > 500 and str(path) in printed
    # the file changes, and so does what it says: nothing of the first run is kept
    file.write_text(FILE.replace("% 2", "% 3"))
    assert load_class(f"{file}:Even")().bias(torch.tensor([5]), torch.tensor([3])).item() == -2
    for wrong, word in (
        (f"{file}:Odd", "it has Even"),
        (f"{tmp_path}/none.py:Even", "no file"),
        ("mine:Even", "path/to/file.py:ClassName"),
        (f"{file}:Other", "none of the hooks"),
        ("rotatory", "unknown encoding"),
    ):
        assert main(["diagnose", wrong]) == 2
        error = capsys.readouterr().err
        assert word in error and error.count("\n") == 1
    file.write_text("import nowhere_to_be_found")
    with pytest.raises(ValueError, match="does not run: ModuleNotFoundError"):
        load_class(f"{file}:Even")


def test_a_card_prints_its_text_and_draws_without_a_law():
    card = lengthgen.diagnose(Table, **SMALL)
    assert isinstance(card, ReportCard) and str(card) == card.text
    assert "does not apply" in card.text and len(repr(card)) < 300
    assert len(card.plot().axes) == 4

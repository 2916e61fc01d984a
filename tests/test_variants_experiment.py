"""The atlas: rows, summary, shared heads; margins; the theorem on monotone biases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lengthgen import expressivity
from lengthgen.claims import variants as claims
from lengthgen.encodings import Rotary, XPos
from lengthgen.experiments import heads, variants
from lengthgen.late_carrier import max_margin

FEW = ("rotary", "rotary-interpolated", "rotary-log-tested", "learned-random-offset", "alibi")


@pytest.fixture
def result(monkeypatch):
    for module in (heads, variants):
        monkeypatch.setattr(module, "default_steps", lambda encoding: 2)
    config = variants.Config(
        1, encodings=FEW, lengths=(16, 32, 80), n_sequences=40, margin_offsets=(16, 40)
    )
    return replace(variants.EXPERIMENT, profiles={"quick": config}).run("quick")


def test_rows_and_summary_of_a_small_run(result):
    lengths = {name: (16, 32, 80) for name in FEW} | {"learned-random-offset": (16, 32)}
    for name in FEW:
        for offset in (1, 2):
            rows = result.select(encoding=name, offset=offset, seed=0)
            assert [row["length"] for row in rows[:-1]] == list(lengths[name])
            assert {"equivariance_error", "pinning_index", "alignment", "dilution_error"} <= set(
                rows[-1]
            )
            assert "length" not in rows[-1]
            # the law is there where logits depend on the offset alone, for every length
            lawful = name in ("rotary", "rotary-interpolated", "alibi")
            assert all((row["predicted"] is not None) == lawful for row in rows[:-1])
            assert len(result.summary["kernels"][name][str(offset)]) == min(64, lengths[name][-1])
    assert {row["seed"] for row in result.rows} == {0}
    assert {row["offset"] for row in result.summary["suppression"]} == {1, 2}
    figure = variants.EXPERIMENT.plot(result)
    assert len(figure.axes) == 3 * len(variants.FAMILIES)


def test_heads_of_the_book_are_shared_and_test_time_variants_train_nothing():
    config = variants.EXPERIMENT.config("paper")
    for name, variant in variants.VARIANTS.items():
        stacks = variants.stacks(config, variant.trained)
        assert [seed for stack in stacks for seed in stack.seeds] == list(range(20))
        shared = stacks == heads.head_stacks(variant.trained.encoding, 20)
        assert shared == (name in variants.SHARED or variant.tested is not None)
    assert {n for names in variants.FAMILIES.values() for n in names} == set(variants.VARIANTS)


def test_a_wave_margin_is_that_of_the_cone_program_in_other_units():
    rotary = Rotary(32)
    margin = expressivity.wave_margin(expressivity.wave_features(rotary, 16), 2)
    assert abs(margin - 1 / max_margin(rotary.frequencies, 2).norm) < 1e-5


def test_rotary_margins_shrink_with_the_range_and_xpos_margins_hardly():
    def pair(encoding):
        features = expressivity.wave_features(encoding, 200)
        return [expressivity.wave_margin(features[:n], 1) for n in (16, 200)]

    (rotary_short, rotary_long), (xpos_short, xpos_long) = pair(Rotary(32)), pair(XPos(32))
    assert 0 < rotary_long < rotary_short
    assert xpos_long / xpos_short > rotary_long / rotary_short


def test_margins_of_tables_and_of_falling_biases():
    found = expressivity.margins(2, 40)
    assert found["none"] == found["alibi"] == found["kerple"] == 0
    assert found["t5"] == found["clipped-relative"] == found["fire"] == 2
    assert 0 < found["rotary-partial"] <= found["rotary"] + 1e-6
    # offset 20 shares its entry of the clipped table with all that follow
    assert expressivity.margins(20, 40)["clipped-relative"] == 0
    with pytest.raises(ValueError, match="offset=40"):
        expressivity.table_margin(torch.eye(40, dtype=torch.float64), 40)


def test_monotone_biases_obey_the_bound_and_others_need_not():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, (4_000, 10), generator=generator)
    content = torch.randn(4, 4, 1, generator=generator, dtype=torch.float64)
    falling = content - torch.rand(10, generator=generator, dtype=torch.float64).cumsum(0)
    for nearer in (1, 2):
        assert expressivity.swap_keeps_answers(falling, tokens, 3, nearer).all()
    hits = expressivity.largest_mass(falling, tokens) == tokens[:, 3]
    assert hits.double().mean() <= expressivity.monotone_bound(3, 4)
    peaked = content + 9.0 * (torch.arange(10) == 3)
    assert not expressivity.swap_keeps_answers(peaked, tokens, 3, 1).all()
    hits = expressivity.largest_mass(peaked, tokens) == tokens[:, 3]
    assert hits.double().mean() > expressivity.monotone_bound(3, 4)


def test_claims_read_what_the_experiment_writes(result):
    """Every encoding that a claim names is one of the experiment's."""
    for names in (claims.ABSOLUTE, claims.OFFSET_ONLY, claims.BEYOND, claims.WITHIN):
        assert set(names) <= set(variants.VARIANTS)
    by_id = {claim.id: claim for claim in claims.CLAIMS}
    assert 0 <= by_id["variants.suppression"].measure(result) <= 1
    assert by_id["variants.no_margin"].measure(result) == 0

import itertools
import math

import pytest
import torch

from lengthgen.descent import Descent, descend, scale_to_loss, snapshots, trajectory
from lengthgen.encodings import rotary_frequencies
from lengthgen.late_carrier import max_margin, smallest_head
from lengthgen.position_head import PositionHead, initialize, margin
from lengthgen.position_loss import equation_of_motion, log_loss

FREQUENCIES = rotary_frequencies(32)
OFFSETS = torch.arange(1, 9)
SEEDS = tuple(range(8))


def start(std=0.1):
    return initialize(SEEDS, std, FREQUENCIES)


def test_a_step_on_the_loss_is_plain_gradient_descent():
    head = start(1.0)
    d_query, d_key, _ = equation_of_motion(head, OFFSETS)
    after, _ = trajectory(head, OFFSETS, [1], Descent("loss", 0.3))[0]
    torch.testing.assert_close(after.query, head.query + 0.3 * d_query, rtol=1e-15, atol=0)
    torch.testing.assert_close(after.key, head.key + 0.3 * d_key, rtol=1e-15, atol=0)


def test_a_step_on_the_log_loss_divides_by_the_size():
    head = start(1.0)
    d_query, _, _ = equation_of_motion(head, OFFSETS, log=True)
    after, _ = trajectory(head, OFFSETS, [1], Descent("log_loss", 0.3))[0]
    eta = 0.3 * 32**0.5 / (1 + head.size)
    torch.testing.assert_close(after.query, head.query + eta[:, None] * d_query)


def test_adam_is_the_adam_of_torch():
    head = start(0.3)
    query, key = (torch.view_as_real(x).clone().requires_grad_() for x in (head.query, head.key))
    optimizer = torch.optim.Adam([query, key], lr=0.01)
    for _ in range(10):
        now = PositionHead(*map(torch.view_as_complex, (query.detach(), key.detach())), FREQUENCIES)
        d_query, d_key, _ = equation_of_motion(now, OFFSETS)
        query.grad, key.grad = (-torch.view_as_real(x).clone() for x in (d_query, d_key))
        optimizer.step()
    after, _ = trajectory(head, OFFSETS, [10], Descent("adam", 0.01))[0]
    # 10 steps of 0.01: rounding of the moments only
    torch.testing.assert_close(torch.view_as_real(after.query), query.detach(), rtol=0, atol=1e-10)


def test_both_clocks_follow_one_flow():
    levels = [1.0, 0.3]
    slow = snapshots(start(0.5), OFFSETS, levels, 2_000, Descent("loss", 1.0))
    fast = snapshots(start(0.5), OFFSETS, levels, 2_000, Descent("log_loss", 0.1))
    for a, b in zip(slow, fast, strict=True):
        assert a.reached.all() and b.reached.all()
        # both steps make first-order errors, of the growth per step: a few per cent
        gap = (a.head.coefficients - b.head.coefficients).abs().amax(-1)
        assert (gap / a.head.coefficients.abs().amax(-1)).max() < 0.1


def test_the_log_loss_falls_at_every_step_at_every_scale():
    for std in (0.01, 1.0, 3.0):
        states = itertools.islice(descend(start(std), OFFSETS, Descent("log_loss", 1.0)), 200)
        losses = torch.stack([log_value for _, log_value in states])
        assert (losses.diff(dim=0) < 1e-12).all()


@pytest.mark.parametrize("rule,step_size", [("loss", 1.0), ("log_loss", 0.5)])
def test_snapshots_share_their_training_loss_to_rounding(rule, step_size):
    levels = [2.0, 0.5, 0.05]
    shots = snapshots(start(), OFFSETS, levels, 5_000, Descent(rule, step_size))
    for shot in shots:
        assert shot.reached.all()
        loss = log_loss(shot.head, OFFSETS).exp()
        torch.testing.assert_close(loss, torch.full_like(loss, shot.level), rtol=1e-9, atol=0)
    steps = torch.stack([shot.steps for shot in shots])
    assert (steps.diff(dim=0) > 0).all()


def test_a_snapshot_lies_on_its_trajectory():
    shot = snapshots(start(), OFFSETS, [0.5], 5_000, Descent())[0]
    whole = int(shot.steps[2])
    before, after = trajectory(start(), OFFSETS, [whole, whole + 1], Descent())
    expected = torch.lerp(before[0].query[2], after[0].query[2], shot.steps[2] - whole + 0j)
    torch.testing.assert_close(shot.head.query[2], expected, rtol=1e-9, atol=1e-12)


def test_a_level_of_1e_200_can_be_reached():
    # plain descent would need about 1e200 steps; on the clock of the log loss it takes 1,800
    shots = snapshots(start(), OFFSETS, [1e-32, 1e-200], 2_500, Descent(step_size=1.0))
    assert all(shot.reached.all() for shot in shots)
    torch.testing.assert_close(
        log_loss(shots[1].head, OFFSETS), torch.full((8,), math.log(1e-200), dtype=torch.float64)
    )


def test_what_is_not_reached_is_counted_and_left_as_it_was_last():
    shots = snapshots(start(), OFFSETS, [2.5, 1e-6], 30, Descent())
    last, _ = trajectory(start(), OFFSETS, [30], Descent())[0]
    assert not shots[1].reached.any()
    assert torch.equal(shots[1].head.query, last.query)
    assert (shots[1].steps == 30).all()


def test_weight_decay_stops_the_descent_where_the_gradients_balance():
    decay = 3e-2
    head, log_value = trajectory(
        start(1.0), OFFSETS, [400], Descent("loss", 1.0, weight_decay=decay)
    )[0]
    d_query, _, _ = equation_of_motion(head, OFFSETS)
    # the slowest frequency is still fading
    assert (d_query - decay * head.query).abs().max() < 3e-2 * d_query.abs().max()
    free, log_free = trajectory(start(1.0), OFFSETS, [400], Descent("loss", 1.0))[0]
    assert (log_free < log_value).all() and (head.size < free.size).all()


def test_rescaled_heads_share_their_loss_and_their_directions():
    carriers = [max_margin(FREQUENCIES, k) for k in (2, 5)]
    head = smallest_head(torch.stack([c.coefficients for c in carriers]), FREQUENCIES)
    offset = torch.tensor([2, 5])
    scaled = scale_to_loss(head, offset, 1e-4)
    torch.testing.assert_close(
        log_loss(scaled, offset), torch.full((2,), math.log(1e-4), dtype=torch.float64)
    )
    ratio = scaled.coefficients / head.coefficients
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    assert (margin(scaled.coefficients, FREQUENCIES, offset, 16) > 0).all()


def test_lengths_change_the_path():
    short = trajectory(start(), OFFSETS, [50], Descent(lengths=(16,)))[0][0]
    mixed = trajectory(start(), OFFSETS, [50], Descent())[0][0]
    assert not torch.allclose(short.query, mixed.query)


@pytest.mark.parametrize(
    "arguments,named",
    [
        ({"rule": "sgd"}, "'sgd' is unknown; choose from loss, log_loss, adam"),
        ({"step_size": 0.0}, "step_size=0.0"),
        ({"step_size": 1.5}, "step_size=1.5"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"lengths": ()}, r"lengths=\(\)"),
        ({"lengths": (1, 16)}, r"lengths=\(1, 16\)"),
    ],
)
def test_a_descent_that_makes_no_sense_is_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        Descent(**arguments)


def test_wrong_levels_steps_and_offsets_are_refused():
    for levels in ([], [0.1, 0.1], [0.1, -1.0]):
        with pytest.raises(ValueError, match="levels="):
            snapshots(start(), OFFSETS, levels, 10, Descent())
    with pytest.raises(ValueError, match="max_steps=0"):
        snapshots(start(), OFFSETS, [0.1], 0, Descent())
    for steps in ([], [-1], [3, 2]):
        with pytest.raises(ValueError, match="steps="):
            trajectory(start(), OFFSETS, steps, Descent())
    with pytest.raises(ValueError, match=r"1\.\.9"):
        trajectory(start(), OFFSETS + 2, [1], Descent())
    with pytest.raises(ValueError, match=r"level=9\.0"):
        scale_to_loss(start(), OFFSETS, 9.0)
    with pytest.raises(ValueError, match="misses its target"):
        scale_to_loss(start(), OFFSETS, 0.1)

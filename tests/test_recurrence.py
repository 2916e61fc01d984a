import pytest
import torch

from lengthgen.linear import as_coefficients, design_matrix, impulse, minimum_norm, scaled_midpoints
from lengthgen.recurrence import (
    CEILING,
    Recurrence,
    _loss_and_gradient,
    descend,
    forcing_width,
    hankel,
    initialize,
    response,
    ring,
    shift_register,
    training_loss,
)


@pytest.mark.parametrize("offset", [0, 1, 4, 8])
def test_a_shift_register_is_the_delay_at_every_offset(offset):
    values = response(shift_register(offset), 200)
    assert torch.equal(values, impulse(torch.tensor([offset]), 200))
    assert not shift_register(offset).transition.matrix_power(offset + 1).any()


@pytest.mark.parametrize("offset", [0, 1, 4, 8])
def test_no_model_with_fewer_states_is_the_delay(offset):
    matrix = hankel(impulse(torch.tensor([offset]), 2 * offset + 3)[0], offset + 2)
    assert torch.linalg.matrix_rank(matrix) == offset + 1


def test_the_hankel_rank_of_any_model_is_at_most_its_width():
    matrix = hankel(response(initialize(range(3), 4, 0.9), 13), 7)
    assert (torch.linalg.matrix_rank(matrix, rtol=1e-10) <= 4).all()


@pytest.mark.parametrize("offset", [1, 2, 4, 7])
def test_a_ring_one_state_wider_than_the_forcing_width_fits_and_comes_back(offset):
    model = ring(offset, forcing_width(offset, 16) + 1)
    values = response(model, 17)[0]
    assert torch.equal(values[:16], impulse(torch.tensor([offset]), 16)[0])
    assert values[16] == 1


def test_every_exact_fit_of_a_forcing_width_is_the_delay():
    """Any change of basis and any useless state leaves an exact fit exact, hence silent."""
    offset, width = 2, forcing_width(2, 16)
    register = shift_register(offset)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(width, width, dtype=torch.float64, generator=generator) * 0.2
    a[:3, :3], a[3:, :3] = register.transition[0], 0  # nothing enters the other states
    b = torch.cat([register.input[0], torch.zeros(width - 3, dtype=torch.float64)])
    c = torch.cat([register.output[0], a[0, 3:]])  # they are read, but stay empty
    basis = torch.eye(width, dtype=torch.float64) + 0.1 * torch.randn(
        width, width, dtype=torch.float64, generator=generator
    )
    inverse = torch.linalg.inv(basis)
    model = Recurrence((basis @ a @ inverse)[None], (basis @ b)[None], (c @ inverse)[None])
    # 1e-9: rounding of sixty products with matrices of norm near 1
    assert (response(model, 60) - impulse(torch.tensor([offset]), 60)).abs().max() < 1e-9


def test_the_linear_control_is_a_recurrence_of_rotations():
    frequencies = scaled_midpoints(4, 0.8)
    design = design_matrix(frequencies, torch.arange(8))
    theta = minimum_norm(design, impulse(torch.tensor([2]), 8))
    c = as_coefficients(theta)[0]
    turn = torch.zeros(8, 8, dtype=torch.float64)
    for f, w in enumerate(frequencies):
        turn[2 * f : 2 * f + 2, 2 * f : 2 * f + 2] = torch.tensor(
            [[w.cos(), -w.sin()], [w.sin(), w.cos()]]
        )
    b = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(4)
    out = torch.stack([c.real, c.imag], -1).flatten()
    values = response(Recurrence(turn[None], b[None], out[None]), 64)
    kernel = theta @ design_matrix(frequencies, torch.arange(64)).T
    assert torch.allclose(values, kernel, atol=1e-10)


def test_a_balanced_model_stays_balanced_and_cannot_delay():
    start = initialize(range(3), 6, 0.5, balanced=True)
    (caught,) = descend(start, torch.tensor([1, 2, 4]), [1e-3], 200, balanced=True)
    model = caught.model
    assert torch.equal(model.transition, model.transition.mT)
    assert torch.equal(model.input, model.output)
    assert training_loss(model, torch.tensor([1, 2, 4])).min() > 1 / 3
    values = response(model, 40)
    assert (values[:, ::2] >= -1e-12).all()  # even moments of a positive measure
    assert not caught.reached.any()


def test_the_gradient_keeps_balance_but_not_stably():
    start, offset = initialize(range(3), 6, 0.5, balanced=True), torch.tensor([1, 2, 4])
    after = [descend(start, offset, [1e-3], steps)[0].model.transition for steps in (3, 300)]
    errors = [float((a - a.mT).abs().max()) for a in after]
    assert errors[0] < 1e-12 and errors[1] > 1e-3


def test_the_gradient_is_that_of_autograd():
    model, offset = initialize(range(3), 5, 0.7), torch.tensor([1, 2, 4])
    weight = torch.rand(9, dtype=torch.float64)
    target = impulse(offset, 9)
    parameters = model.parameters.requires_grad_(True)

    def loss(parameters):
        values = response(Recurrence.from_parameters(parameters, 5), 9)
        return (weight * (values - target).square()).sum(-1) / 2

    (wanted,) = torch.autograd.grad(loss(parameters).sum(), parameters)
    value, gradient = _loss_and_gradient(parameters.detach(), 5, target, weight)
    assert torch.allclose(gradient, wanted, atol=1e-12)
    assert torch.allclose(value, loss(parameters.detach()), atol=1e-12)


def test_descent_catches_every_model_at_each_level_and_alone_as_in_a_stack():
    offset, levels = torch.tensor([1, 2]), [0.1, 1e-3]
    both = descend(initialize([5, 6], 6, 0.3), offset, levels, 500)
    alone = descend(initialize([6], 6, 0.3), offset[1:], levels, 500)
    for caught, one in zip(both, alone, strict=True):
        assert caught.reached.all()
        loss = training_loss(caught.model, offset)
        assert (loss <= caught.level).all()
        assert torch.equal(caught.steps[1:], one.steps)
        # products of stacked matrices may be summed in another order
        assert torch.allclose(caught.model.parameters[1:], one.model.parameters, rtol=1e-9)
    assert (both[0].steps <= both[1].steps).all()


def test_a_model_that_does_not_fit_is_kept_as_it_ends():
    (caught,) = descend(initialize([0], 2, 0.3), torch.tensor([2]), [1e-6], 20)
    assert not caught.reached and caught.steps == 20
    assert training_loss(caught.model, torch.tensor([2])) < 0.5


def test_the_scale_only_rescales_the_draw():
    small, large = (initialize([3], 4, std) for std in (0.1, 1.0))
    assert torch.allclose(10 * small.parameters, large.parameters)
    again = Recurrence.from_parameters(large.parameters, 4)
    assert torch.equal(again.transition, large.transition)
    assert torch.equal(again.output, large.output)


def test_an_unstable_response_is_cut_and_finite():
    two = torch.full((1, 1), 2.0, dtype=torch.float64)
    values = response(Recurrence(two[None], two, two), 3_000)
    assert values.isfinite().all() and values.max() == CEILING


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shift_register(-1), "offset=-1"),
        (lambda: ring(3, 3), r"offset=3 .*0\.\.2"),
        (lambda: hankel(torch.zeros(4, dtype=torch.float64), 3), "size=3 .*at most 2"),
        (lambda: initialize([], 4, 0.1), "0 seeds"),
        (lambda: initialize([0], 4, 0.0), r"std=0\.0"),
        (lambda: descend(initialize([0], 3, 0.1), torch.tensor([1]), [0.1, 0.2], 5), "levels"),
    ],
)
def test_errors_print_the_value_and_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_shapes_that_do_not_belong_together_are_refused():
    a = torch.zeros(1, 3, 2, dtype=torch.float64)
    b = torch.zeros(1, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"\(1, 3, 2\)"):
        Recurrence(a, b, b)

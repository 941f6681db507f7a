"""The training loss, against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.loss import IGNORED, smoothed_cross_entropy

SMOOTHING = [0.0, 0.1, 1.0]


def case(
    rows: int = 7, classes: int = 5, ignored: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Random scores that want a gradient, and labels of which the first are ignored."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (rows,), generator=generator)
    labels[:ignored] = IGNORED
    return logits.to(dtype).requires_grad_(), labels


def torchs(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=smoothing)


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, logits)
    return found


def test_a_worked_example() -> None:
    """Odds of 3 to 1; a fifth of the label is spread, so that a tenth goes to the wrong one."""
    logits = torch.tensor([[math.log(3.0), 0.0], [9.0, 9.0]])
    labels = torch.tensor([0, IGNORED])
    assert smoothed_cross_entropy(logits, labels).item() == pytest.approx(math.log(4 / 3))
    wanted = 0.9 * math.log(4 / 3) + 0.1 * math.log(4)
    assert smoothed_cross_entropy(logits, labels, 0.2).item() == pytest.approx(wanted)


@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("ignored", [0, 2, 6])
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_it_is_torchs_with_its_gradient(smoothing: float, ignored: int, classes: int) -> None:
    logits, labels = case(classes=classes, ignored=ignored)
    ours, theirs = (
        smoothed_cross_entropy(logits, labels, smoothing),
        torchs(logits, labels, smoothing),
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    found, wanted = gradient(ours, logits), gradient(theirs, logits)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    assert not found[:ignored].any()


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_its_gradient_is_that_of_finite_differences(smoothing: float) -> None:
    logits, labels = case()
    assert torch.autograd.gradcheck(lambda x: smoothed_cross_entropy(x, labels, smoothing), logits)


@pytest.mark.parametrize("factor", [-2.0, 0.25])
def test_the_gradient_from_above_is_passed_on(factor: float) -> None:
    logits, labels = case()
    plain = gradient(smoothed_cross_entropy(logits, labels, 0.1), logits)
    scaled = gradient(factor * smoothed_cross_entropy(logits, labels, 0.1), logits)
    torch.testing.assert_close(scaled, factor * plain)


def test_going_back_twice_gives_the_same_gradient() -> None:
    logits, labels = case()
    loss = smoothed_cross_entropy(logits, labels, 0.1)
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    assert torch.equal(first, gradient(loss, logits))


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_sums_are_taken_in_fp32_at_least(dtype: torch.dtype, result: torch.dtype) -> None:
    logits, labels = case(rows=300, classes=50, dtype=dtype)
    loss = smoothed_cross_entropy(logits, labels, 0.1)
    assert loss.dtype == result
    exact = torchs(logits.double(), labels, 0.1)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    found, wanted = gradient(loss, logits), gradient(exact, logits)
    assert found.dtype == wanted.dtype == dtype
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_where_nothing_is_to_be_predicted_it_is_zero(smoothing: float) -> None:
    logits, labels = case(ignored=7)
    loss = smoothed_cross_entropy(logits, labels, smoothing)
    assert loss.item() == 0.0 and not gradient(loss, logits).any()


def test_sure_and_wrong_is_a_large_number_and_not_an_infinite_one() -> None:
    logits = torch.tensor([[0.0, 1e4], [3e4, 0.0]], requires_grad=True)
    loss = smoothed_cross_entropy(logits, torch.tensor([0, 0]), 0.1)
    assert loss.item() == pytest.approx((0.95 * 1e4 + 0.05 * 3e4) / 2)
    assert gradient(loss, logits).isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_no_numbers_show(value: float) -> None:
    logits, labels = case()
    with torch.no_grad():
        logits[-1, 0] = value
    assert not smoothed_cross_entropy(logits, labels, 0.1).isfinite()

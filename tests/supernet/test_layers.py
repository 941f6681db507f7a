"""Elastic layers against torch's own layers of the size that is used."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.settings import ModelSettings
from supernet.layers import (
    ElasticEmbedding,
    ElasticFeedForward,
    ElasticLayerNorm,
    ElasticLinear,
    ElasticPatchEmbedding,
    ReluFeedForward,
    ScaledDropout,
    dropout,
    sinusoidal_positions,
)
from supernet.slices import Slices, prefix
from tests.support.supernet_cases import IMAGES, gradients, randomised


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _settings(activation: str) -> ModelSettings:
    return replace(IMAGES, activation=activation)  # type: ignore[arg-type]


def cut_into(small: nn.Module, large: nn.Module) -> nn.Module:
    """The small layer with the leading corner of each of the large one's parameters."""
    small.double()
    theirs = dict(large.named_parameters())
    with torch.no_grad():
        for name, parameter in small.named_parameters():
            parameter.copy_(theirs[name][tuple(slice(0, n) for n in parameter.shape)])
    return small


def check_same(large: nn.Module, elastic: Tensor, small: nn.Module, plain: Tensor) -> None:
    """Same outputs; gradients are the small layer's in the corner and zero elsewhere."""
    torch.testing.assert_close(elastic, plain, rtol=0, atol=1e-12)
    expected = gradients(small, plain)
    for name, found in gradients(large, elastic).items():
        wanted = expected[name]
        assert found is not None and wanted is not None
        padded = torch.zeros_like(found)
        padded[tuple(slice(0, n) for n in wanted.shape)] = wanted
        torch.testing.assert_close(found, padded, rtol=0, atol=1e-11)
        assert found.abs().sum() > 0


@pytest.mark.parametrize(("inside", "outside"), [(7, 5), (3, 5), (7, 2), (1, 1)])
def test_linear_is_the_linear_layer_of_its_corner(inside: int, outside: int) -> None:
    large = randomised(ElasticLinear(7, 5))
    small = cut_into(nn.Linear(inside, outside), large)
    x = draw(2, 3, inside)
    check_same(large, large(x, outside), small, small(x))


def test_linear_is_not_any_other_corner() -> None:
    large = randomised(ElasticLinear(7, 5))
    x = draw(2, 3)
    assert not torch.allclose(large(x, 2), F.linear(x, large.weight[-2:, -3:], large.bias[-2:]))


@pytest.mark.parametrize("width", [9, 4, 1])
def test_norm_takes_statistics_over_what_is_there(width: int) -> None:
    large = randomised(ElasticLayerNorm(9))
    small = cut_into(nn.LayerNorm(width), large)
    x = draw(2, 3, width)
    torch.testing.assert_close(large(x), small(x), rtol=0, atol=1e-12)
    if width > 1:  # of a single feature nothing but the shift is left
        check_same(large, large(x), small, small(x))


@pytest.mark.parametrize("dim", [6, 2])
def test_embedding_is_the_narrow_table(dim: int) -> None:
    large = randomised(ElasticEmbedding(11, 6))
    small = cut_into(nn.Embedding(11, dim), large)
    tokens = torch.tensor([[1, 4, 0], [10, 4, 4]])
    check_same(large, large(tokens, dim), small, small(tokens))


@pytest.mark.parametrize("dim", [6, 2])
def test_patches_are_a_strided_convolution(dim: int) -> None:
    large = randomised(ElasticPatchEmbedding(3, 6, 2))
    small = cut_into(nn.Conv2d(3, dim, kernel_size=2, stride=2), large)
    images = draw(2, 3, 4, 6)
    plain = small(images).flatten(2).transpose(1, 2)
    check_same(large, large(images, dim), small, plain)


def test_patches_stand_row_by_row() -> None:
    layer = randomised(ElasticPatchEmbedding(1, 4, 2))
    images = draw(1, 1, 4, 6)
    patches = images[0, 0].unfold(0, 2, 2).unfold(1, 2, 2).reshape(6, 4)
    assert layer.bias is not None
    expected = patches @ layer.weight.view(4, 4).T + layer.bias
    torch.testing.assert_close(layer(images, 4)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("dim", "ffn_dim"), [(6, 10), (4, 3)])
def test_feed_forward_is_two_linear_layers(activation: str, dim: int, ffn_dim: int) -> None:
    large = randomised(ElasticFeedForward(_settings(activation), 6, 10, dropout=0.0))
    act = nn.ReLU() if activation == "relu" else nn.GELU()
    small = nn.ModuleDict({"inner": nn.Linear(dim, ffn_dim), "outer": nn.Linear(ffn_dim, dim)})
    cut_into(small, large)
    x = draw(2, 3, dim)
    plain = small["outer"](act(small["inner"](x)))
    check_same(large, large(x, ffn_dim), small, plain)


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_feed_forward_in_one_step(rate: float) -> None:
    """The same numbers and gradients as its layers one by one, which draw the same dropout."""
    layer = randomised(ElasticFeedForward(_settings("relu"), 6, 16, dropout=rate))
    x = draw(2, 3, 6).requires_grad_()
    assert layer.inner.bias is not None and layer.outer.bias is not None
    weights = layer.inner.weight, layer.inner.bias, layer.outer.weight, layer.outer.bias
    results = []
    for way in (lambda: layer(x, 16), lambda: ReluFeedForward.apply(x, *weights, rate)):  # type: ignore[no-untyped-call]
        torch.manual_seed(0)
        out = way()
        found = torch.autograd.grad((out * draw(2, 3, 6, seed=1)).sum(), (x, *weights))
        results.append([out.detach(), *found])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
        assert theirs.abs().sum() > 0
    assert rate or torch.autograd.gradcheck(
        lambda *given: ReluFeedForward.apply(*given, rate),  # type: ignore[no-untyped-call]
        (x, *weights),
        fast_mode=True,
    )


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("training", [True, False])
def test_feed_forward_in_bf16(
    activation: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step where it is ReLU and trains; as near to fp32 as its layers one by one."""
    layer = randomised(ElasticFeedForward(_settings(activation), 6, 16, dropout=0.1)).float()
    layer.train(training)
    x = draw(2, 3, 4).bfloat16()
    slices = Slices(layer)

    def found(low: bool) -> list[Tensor]:
        layer.zero_grad()
        torch.manual_seed(0)
        given = x if low else x.float()
        with slices.training(), torch.set_grad_enabled(training):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                out = layer(given, 9)
            steps.append("" if out.grad_fn is None else out.grad_fn.name())
            if training:
                slices.backward(out.float().square().sum())
        return [out.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]

    steps: list[str] = []
    exact, mine = found(low=False), found(low=True)
    monkeypatch.setattr(ElasticFeedForward, "_relu_in_one", lambda *_: None)
    theirs = found(low=True)
    one_step = training and activation == "relu"
    assert [name == "ReluFeedForwardBackward" for name in steps] == [False, one_step, False]
    assert mine[0].dtype == torch.bfloat16
    for wanted, one, other in zip(exact, mine, theirs, strict=True):
        far, further = ((each.float() - wanted).norm() for each in (one, other))
        assert far <= 1.5 * further + 0.005 * wanted.norm()


def test_prefix_is_a_view_and_the_whole_is_the_parameter() -> None:
    weight = nn.Parameter(draw(5, 7))
    part = prefix(weight, 2, 3)
    assert part.shape == (2, 3)
    assert part._base is weight and part.data_ptr() == weight.data_ptr()
    assert prefix(weight, 5, 7) is weight
    assert weight[:2].clone().data_ptr() != weight.data_ptr()


@pytest.mark.parametrize("layer", [ElasticLinear(4, 4), ElasticLayerNorm(4)])
def test_input_that_is_too_wide_is_refused(layer: nn.Module) -> None:
    sizes = (4,) if isinstance(layer, ElasticLinear) else ()
    with pytest.raises(RuntimeError):
        layer(torch.zeros(2, 5), *sizes)


def test_nothing_remembers_the_last_call() -> None:
    layer = randomised(ElasticFeedForward(_settings("relu"), 6, 10, dropout=0.0))
    x = draw(2, 3, 4)
    before = layer(x, 3)
    layer(draw(2, 3, 6), 10)
    assert torch.equal(layer(x, 3), before)
    assert not torch.equal(layer(x, 4), before)


@pytest.mark.parametrize(("width", "share"), [(400, 0.4), (100, 0.1)])
def test_dropout_shrinks_with_the_width(width: int, share: float) -> None:
    layer = ScaledDropout(0.4, 400)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = layer(torch.ones(200, width))
    assert float((out == 0).double().mean()) == pytest.approx(share, abs=0.02)
    # The rate is rounded to a 65,536th.
    assert torch.allclose(out[out > 0], torch.tensor(1 / (1 - share)), rtol=2e-5)


@pytest.mark.parametrize(("rate", "training"), [(0.4, False), (0.0, True)])
def test_dropout_leaves_evaluation_and_rate_zero_alone(rate: float, training: bool) -> None:
    layer = ScaledDropout(rate, 8).train(training)
    x = draw(2, 8)
    assert layer(x) is x


@pytest.mark.parametrize("dim", [8, 7, 1])
def test_sinusoidal_positions_are_the_printed_formula(dim: int) -> None:
    found = sinusoidal_positions(5, dim, torch.device("cpu"))
    for position in range(5):
        for i in range(dim):
            angle = position / 10_000 ** (2 * (i // 2) / dim)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert float(found[position, i]) == pytest.approx(expected, abs=1e-5)


# -- dropout ----------------------------------------------------------------------------------


def dropped(x: Tensor, rate: float, seed: int = 0) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return dropout(x, rate)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_zeroes_its_share_and_keeps_the_mean(rate: float, dtype: torch.dtype) -> None:
    count = 400_003
    out = dropped(torch.ones(count, dtype=dtype), rate)
    spread = math.sqrt(rate * (1 - rate) / count)
    share = (out == 0).double().mean().item()
    assert share == pytest.approx(rate, abs=5 * spread)
    assert out.mean().item() == pytest.approx(1.0, abs=5 * spread / (1 - rate) + 1e-4)
    assert out.dtype == dtype and len(out.unique()) == 2


def test_dropouts_four_draws_out_of_one_number_are_independent() -> None:
    zeroed = (dropped(torch.ones(200_000, 4), 0.3) == 0).double()
    shares = zeroed.mean(dim=0)
    torch.testing.assert_close(shares, torch.full((4,), 0.3).double(), atol=0.006, rtol=0)
    together = torch.corrcoef(zeroed.T) - torch.eye(4)
    assert together.abs().max() < 0.012
    neighbours = torch.corrcoef(torch.stack([zeroed[1:, 0], zeroed[:-1, 3]]))[0, 1]
    assert abs(neighbours) < 0.012


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (5, 7, 9), (3, 0, 2)])
def test_dropout_keeps_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 2.0)
    out = dropped(x, 0.5)
    assert out.shape == x.shape and set(out.flatten().tolist()) <= {0.0, 4.0}


def test_dropout_is_decided_by_the_seed_and_not_by_the_values() -> None:
    x, other = draw(33, 5), draw(33, 5, seed=1)
    assert torch.equal(dropped(x, 0.4), dropped(x, 0.4))
    assert torch.equal(dropped(x, 0.4) == 0, dropped(other, 0.4) == 0)
    assert not torch.equal(dropped(x, 0.4), dropped(x, 0.4, seed=1))


def test_dropout_passes_the_gradient_where_it_passes_the_value() -> None:
    x = draw(9, 11).requires_grad_()
    out = dropped(x, 0.25)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient * x, out)


@pytest.mark.parametrize(("rate", "scale"), [(0.5, 2.0), (0.1, 1.109375), (0.0, 1.0)])
def test_dropout_in_bf16_stays_in_bf16(rate: float, scale: float) -> None:
    """10 / 9 is rounded to 1.109375 there, as torch's own dropout rounds it."""
    out = dropped(torch.ones(10_000, dtype=torch.bfloat16), rate)
    assert out.dtype == torch.bfloat16 and out.max().item() == scale
    assert F.dropout(torch.ones(1000, dtype=torch.bfloat16), rate).max().item() == scale


def test_a_view_is_dropped_out_like_its_copy() -> None:
    x = draw(6, 8).T
    assert torch.equal(dropped(x, 0.3), dropped(x.contiguous(), 0.3))

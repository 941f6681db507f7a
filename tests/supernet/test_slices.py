"""Parts of parameters as leaves, against views whose gradients autograd spreads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.update_operations import GpuOperations
from search_spaces.loading import parse_space
from search_spaces.variation import smallest
from supernet.extraction import extract
from supernet.layers import ElasticLinear, side_by_side
from supernet.slices import Casts, Slices, multiplied, prefix, rows, stacked, used
from supernet.training.lanes import Lanes
from supernet.training.loop import Trainer
from supernet.training.sampling import build_sampler
from supernet.training_settings import TrainingSettings
from tests.support.device_waits import CountedOperations
from tests.support.task_cases import (
    SEGMENT,
    SPACES,
    each_kind,
    networks_of,
    supernet_of,
    task_of,
)
from tests.support.trained_cases import LANGUAGE

UPDATES = 3
HEADS = "self_num_heads = [2, 4]\nself_num_kv_heads = [2]"
SETTINGS = TrainingSettings(
    max_tokens=128, segment_length=SEGMENT, batch_size=16, accumulate=2, sampling="sandwich"
)


class Views(Slices):
    """The naive twin: views of the parameters."""

    def of(self, parameter: Tensor, *sizes: int, product: bool = False) -> Tensor:
        """A view."""
        return prefix(parameter, *sizes)

    def rows(self, table: Tensor, numbers: Tensor, width: int) -> Tensor:
        """Looked up in a view."""
        return F.embedding(numbers, prefix(table, len(table), width))

    def stacked(self, parameters: Sequence[Tensor], *sizes: int) -> Tensor | None:
        """Nothing lies together."""
        return None


def trained(
    kind: str, settings: TrainingSettings, way: type[Slices], updates: int = UPDATES
) -> dict[str, Tensor]:
    """The weights after some updates, and the gradients of the last."""
    space, task = SPACES[kind], task_of(kind)
    model = supernet_of(space, settings.dropout)
    sampler = build_sampler(space, settings, 0)
    trainer = Trainer(model, sampler, networks_of(space, 2), task, settings, seed=0)
    trainer._lanes = Lanes(way(model), settings, "cpu")
    stream = task.batches(settings, seed=0, epoch=0, device="cpu")
    torch.manual_seed(1)  # of dropout
    for _, batch in zip(range(updates), stream, strict=False):
        trainer._update([batch, batch])
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad
    return found


@each_kind
@pytest.mark.parametrize("change", [{}, {"distillation": 0.5}, {"loss_chunk": 16}])
def test_training_ends_in_the_same_weights(kind: str, change: dict[str, float]) -> None:
    if kind == "classification" and "loss_chunk" in change:
        pytest.skip("one prediction an image: no chunks")
    settings = replace(SETTINGS, **change)  # type: ignore[arg-type]
    wanted = trained(kind, settings, Views)
    found = trained(kind, settings, Slices)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        # A table that is used in two sizes adds its gradients up in another order.
        near = {"rtol": 0, "atol": 0} if kind == "classification" else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(found[name], value, **near)


@each_kind
def test_products_in_bf16(kind: str) -> None:
    """Gradients are as near to those of fp32 as with views; later updates go ways of their own."""
    low = replace(SETTINGS, bfloat16=True)
    wanted = trained(kind, SETTINGS, Views, 1)
    views, parts = (trained(kind, low, way, 1) for way in (Views, Slices))
    for name, value in wanted.items():
        if name.startswith("gradient"):
            far, further = ((one[name] - value).norm() for one in (parts, views))
            assert far <= 1.5 * further + 0.01 * value.norm(), name


@each_kind
def test_a_part_that_is_used_twice_is_cast_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second update asks for no cast of a parameter that the first one has cast."""
    calls = []
    for way in (Views, Slices):
        with CountedOperations(monkeypatch) as counted:
            trained(kind, replace(SETTINGS, bfloat16=True), way)
        calls.append(counted.calls)
    views, parts = calls
    assert parts["aten.slice_backward.default"] < views["aten.slice_backward.default"] / 4
    assert parts["aten._to_copy.default"] < views["aten._to_copy.default"] * 0.7


class Table(nn.Module):
    """A parameter that is used in parts, one that is used whole, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 3))
        self.whole = nn.Parameter(torch.ones(2))
        self.unused = nn.Parameter(torch.ones(1))


def test_gradients_go_to_the_leading_part() -> None:
    model = Table()
    slices = Slices(model)
    for _ in range(2):  # the gradients of an update before are forgotten
        model.zero_grad(set_to_none=True)
        slices.begin()
        for _ in range(2):
            with slices.training():
                part = used(model.table, 2, 2)
                assert used(model.table, 2, 2) is part and used(model.whole, 2) is model.whole
                row = multiplied(model.table, 1, 3)
                slices.backward(3.0 * part.sum() + row.sum() + 5.0 * model.whole.sum())
        assert model.table.grad is not None and model.whole.grad is not None
        assert model.table.grad.tolist() == [[8, 8, 2], [6, 6, 0], [0, 0, 0], [0, 0, 0]]
        assert model.whole.grad.tolist() == [10, 10]
        assert model.unused.grad is None


@pytest.mark.parametrize("width", [3, 2])
@pytest.mark.parametrize("own", [True, False])
def test_gradients_of_rows_are_added_where_they_lie(width: int, own: bool) -> None:
    """Of rows that stand twice, of two networks, and beside the table's own or alone."""
    model, twin = Table(), Table()
    numbers = torch.tensor([[1, 3], [1, 0]])
    weights = torch.arange(4.0 * width).view(2, 2, width)
    slices = Slices(model)
    for _ in range(2):  # the gradients of an update before are forgotten
        for one in (model, twin):
            one.zero_grad(set_to_none=True)
        slices.begin()
        for _ in range(2):
            with slices.training():
                looked_up = (weights * rows(model.table, numbers, width)).sum()
                slices.backward(looked_up + own * used(model.table, 2, 1).square().sum())
            looked_up = (weights * rows(twin.table, numbers, width)).sum()
            (looked_up + own * prefix(twin.table, 2, 1).square().sum()).backward()
        assert torch.equal(model.table.grad, twin.table.grad)
        assert model.table.grad.abs().sum() > 0 and model.table.grad[2].tolist() == [0, 0, 0]


def test_rows_of_a_table_that_does_not_learn() -> None:
    model = Table()
    model.table.requires_grad_(False)
    slices = Slices(model)
    with slices.training():
        found = rows(model.table, torch.tensor([2]), 2)
        slices.backward((found * model.whole).sum())
    assert not found.requires_grad and model.table.grad is None
    assert model.whole.grad.tolist() == [1, 1]


def test_a_part_after_the_whole() -> None:
    """In one network, and in one update: both orders."""
    model = Table()
    for sizes in ([(4, 3), (1, 1)], [(1, 1), (4, 3)]):
        model.zero_grad(set_to_none=True)
        slices = Slices(model)
        slices.begin()
        for size in sizes:
            with slices.training():
                slices.backward(used(model.table, *size).sum() + used(model.table, 1, 2).sum())
        assert model.table.grad is not None
        assert model.table.grad.tolist() == [[4, 3, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]


def test_gradients_by_other_tensors() -> None:
    model, state = Table(), torch.ones(3, requires_grad=True)
    slices = Slices(model)
    with slices.training():
        found = slices.backward((used(model.whole, 1) * state).sum(), by=[state, state])
    assert [one.tolist() for one in found] == [[1, 1, 1]] * 2
    assert state.grad is None
    assert model.whole.grad is not None and model.whole.grad.tolist() == [3, 0]


def test_parts_follow_the_parameters() -> None:
    model = Table()
    slices = Slices(model)
    for value in (1.0, 2.0):
        with torch.no_grad():
            model.table.fill_(value)
        slices.begin()
        with slices.training(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert multiplied(model.table, 1, 2).tolist() == [[value, value]]
            assert multiplied(model.table, 1, 2).dtype == torch.bfloat16
            assert used(model.table, 1, 2).dtype == torch.float32
    assert multiplied(model.table, 4, 3) is model.table, "outside nothing is cast"


def test_frozen_parameters_are_views() -> None:
    model = Table().requires_grad_(False)
    with Slices(model).training():
        assert used(model.table, 2).data_ptr() == model.table.data_ptr()
        assert not used(model.table, 2).requires_grad


def test_a_size_beyond_the_parameter_is_refused() -> None:
    model = Table()
    with Slices(model).training(), pytest.raises(RuntimeError, match="exceeds"):
        used(model.table, 5)


class Pair(nn.Module):
    """Two layers of one size."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = ElasticLinear(6, 4, bias), ElasticLinear(6, 4, bias)

    def loss(self, x: Tensor, size: int, together: bool) -> Tensor:
        """Of both outputs, with weights that tell them apart."""
        layers = self.first, self.second
        if together:
            product = side_by_side(layers, x, size)
            assert product is not None
            outs = product.chunk(2, dim=-1)
        else:
            outs = tuple(one(x, size) for one in layers)
        return sum((out * k).square().sum() for k, out in enumerate(outs, start=1))  # type: ignore[return-value]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inside", "outside"), [(6, 4), (5, 4), (6, 3), (2, 1)])
def test_layers_side_by_side_are_each_by_itself(bias: bool, inside: int, outside: int) -> None:
    model, x = Pair(bias), torch.randn(2, 3, inside, generator=torch.Generator().manual_seed(1))
    found = []
    for together in (True, False):
        model.zero_grad(set_to_none=True)
        slices = Slices(model)
        slices.begin()
        with slices.training(), torch.autocast("cpu", dtype=torch.bfloat16):
            slices.backward(model.loss(x, outside, together))
        found.append([p.grad for p in model.parameters()])
    for mine, theirs in zip(*found, strict=True):
        assert mine is not None and theirs is not None and mine.abs().sum() > 0
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_parameters_lie_together_only_where_they_are_cast() -> None:
    model = Pair()
    weights = model.first.weight, model.second.weight
    assert stacked(weights, 4, 6) is None
    slices = Slices(model)
    with slices.training():
        assert stacked(weights, 4, 6) is None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            whole, part = stacked(weights, 4, 6), stacked(weights, 2, 5)
            assert whole is not None and part is not None
            assert torch.equal(whole, torch.cat(weights).bfloat16())
            assert torch.equal(part, torch.cat([w[:2, :5] for w in weights]).bfloat16())
    with torch.no_grad():
        model.second.weight.fill_(2.0)
    slices.begin()
    with slices.training(), torch.autocast("cpu", dtype=torch.bfloat16):
        after = stacked(weights, 4, 6)
    assert after is not None and torch.equal(after, torch.cat(weights).bfloat16())


@pytest.mark.parametrize("way", ["training", "evaluation"])
def test_keys_of_fewer_heads_than_the_largest_network_asks_for(way: str) -> None:
    """A network of as many heads of queries as of keys, whose parameters differ in shape."""
    text = LANGUAGE.replace("self_num_heads = [1, 2]", HEADS)
    assert text != LANGUAGE
    space = parse_space(text, "space")
    (network,) = space.decode(smallest(space))
    model, tokens = supernet_of(space), torch.randint(1, 100, (2, 5))
    with torch.no_grad():
        right = model(tokens, network)
    held = Slices(model).training() if way == "training" else Casts().held()
    with held, torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(tokens, network)
    torch.testing.assert_close(found.float(), right, rtol=5e-2, atol=5e-2)


def test_several_layers_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Pair(), torch.ones(2, 6)
    counts = []
    for together in (True, False):
        slices = Slices(model)
        with slices.training(), torch.autocast("cpu", dtype=torch.bfloat16):
            model.loss(x, 4, together)
            with CountedOperations(monkeypatch) as counted:
                model.loss(x, 4, together)
        counts.append(counted.calls["aten.addmm.default"])
    assert counts == [1, 2]


@pytest.mark.parametrize("sort", ["supernet", "network"])
@each_kind
def test_networks_that_are_evaluated_cast_each_parameter_once(kind: str, sort: str) -> None:
    """In bf16, with the same outputs."""
    space, task = SPACES[kind], task_of(kind)
    (network,) = networks_of(space, 1)
    model: nn.Module = supernet_of(space, 0.0).float()
    if sort == "network":
        model = extract(model, network).network
    settings = replace(SETTINGS, accumulate=1)
    batch = next(iter(task.batches(settings, seed=0, epoch=0, device="cpu")))

    def ran(context: AbstractContextManager[object]) -> tuple[Tensor, int]:
        # Without its cache autocast does what it does in inference mode, where nothing counts it.
        autocast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with torch.no_grad(), autocast, context:
            task.predict(model, batch, network)
            with GpuOperations() as operations:
                out = task.predict(model, batch, network).logits
        return out, operations.forward["_to_copy"]

    held, few = ran(Casts().held())
    loose, many = ran(nullcontext())
    torch.testing.assert_close(held, loose, rtol=3e-2, atol=3e-2)
    assert few < 0.7 * many

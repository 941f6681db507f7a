"""Output layers of smaller sizes, fitted to what the whole layer says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from search_spaces.architecture import Architecture
from search_spaces.loading import dump_space, parse_space
from search_spaces.space import SearchSpace
from supernet.building import build_supernet, supernet_params
from supernet.extraction import Supernet, extract
from supernet.inheritance import refit
from supernet.inheritance.inherit import inherit
from supernet.inheritance.parts import real_positions, stack_name
from supernet.inheritance.refit import Moments
from supernet.pretrained.checkpoint import Checkpoint, read_checkpoint
from supernet.pretrained.space import space_around, space_problem
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import (
    SEARCHED,
    inputs_of,
    kinds_gene,
    layers_of,
    offering,
    write_model,
)

pytestmark = pytest.mark.export

WITH_HEADS = tuple(name for name in ("bert", "gpt2", "vit") if name in SEARCHED)


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def checkpoints(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    place = tmp_path_factory.mktemp("checkpoints")
    return {name: read_checkpoint(write_model(hub, place / name, name)) for name in SEARCHED}


def supernet_of(space: SearchSpace, checkpoint: Checkpoint, batches: list[Tensor]) -> Supernet:
    supernet = build_supernet(space).eval()
    supernet.load_state_dict(inherit(space, checkpoint, batches))
    return supernet


def moments_of(x_TF: Tensor, y_TD: Tensor) -> Moments:
    """Counted in two unequal parts, the second with padding."""
    found = Moments(x_TF.shape[1], y_TD.shape[1], x_TF.device)
    found.add(x_TF[None, :7], y_TD[None, :7], None)
    junk_X = torch.full((1, 5, 1), 99.0)
    x_1NF, y_1ND = (
        torch.cat((part[None, 7:], junk_X.expand(-1, -1, part.shape[1])), dim=1)
        for part in (x_TF, y_TD)
    )
    found.add(x_1NF, y_1ND, torch.arange(x_1NF.shape[1])[None] < len(x_TF) - 7)
    return found


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("bias", [False, True])
def test_inputs_that_others_tell_are_made_up_for(bias: bool) -> None:
    """The removed ones are linear combinations of the kept ones, and of 1 where there is a bias."""
    kept_TK = numbers(50, 4) + (3.0 if bias else 0.0)
    removed_TR = kept_TK @ numbers(4, 3, seed=1) + (2.0 if bias else 0.0)
    x_TF = torch.cat((kept_TK, removed_TR), dim=1)
    linear = nn.Linear(7, 5, bias, dtype=torch.float64)
    y_TD = linear(x_TF).detach()
    weight, own = moments_of(x_TF, y_TD).refit(linear.weight, linear.bias, 4, ridge=1e-12)
    assert torch.allclose(nn.functional.linear(kept_TK, weight, own), y_TD, atol=1e-6)
    assert (own is not None) == bias


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 10.0])
def test_the_error_is_the_least_that_the_ridge_leaves(bias: bool, ridge: float) -> None:
    """By gradient descent's own condition, and never above that of the weights as they were."""
    x_TF, wanted_TD = numbers(40, 7, seed=2) + 1.0, numbers(40, 5, seed=3)
    linear = nn.Linear(7, 5, bias, dtype=torch.float64)
    moments = moments_of(x_TF, wanted_TD)
    weight, own = moments.refit(linear.weight, linear.bias, 4, ridge)
    x_TK = x_TF[:, :4]
    spread = x_TK - x_TK.mean(dim=0) if bias else x_TK
    penalty = ridge * spread.square().mean()
    weight = weight.detach().clone().requires_grad_()
    parameters = [weight]
    if own is not None:
        own = own.detach().clone().requires_grad_()
        parameters.append(own)
    error = (nn.functional.linear(x_TK, weight, own) - wanted_TD).square().sum(dim=1).mean()
    change = (weight - linear.weight[:, :4].detach()).square().sum()
    for gradient in torch.autograd.grad(error + penalty * change, parameters):
        assert gradient.abs().max() < 1e-8
    before_TD = nn.functional.linear(x_TK, linear.weight[:, :4])
    if bias:
        before_TD = before_TD + (wanted_TD - before_TD).mean(dim=0)
    assert error <= (before_TD - wanted_TD).square().sum(dim=1).mean() + 1e-12


def test_silent_inputs_are_no_trouble() -> None:
    linear = nn.Linear(6, 3)
    moments = moments_of(torch.zeros(9, 6), torch.ones(9, 3))
    weight, bias = moments.refit(linear.weight, linear.bias, 4)
    assert torch.equal(weight, linear.weight[:, :4]) and bias is not None
    assert torch.allclose(bias, torch.ones(3))


def error_without(x_TF: Tensor, weight_DF: Tensor, gone: list[int], biased: bool) -> float:
    """What the best weights for the other inputs miss, and what their change costs."""
    spread_TF = x_TF - x_TF.mean(dim=0) if biased else x_TF
    grams_FF = spread_TF.T @ spread_TF / len(x_TF)
    grams_FF = grams_FF + refit.RIDGE * grams_FF.diagonal().mean() * torch.eye(len(grams_FF))
    change_FD, kept = weight_DF.T.clone(), [n for n in range(len(grams_FF)) if n not in gone]
    change_FD[kept] = -torch.linalg.solve(
        grams_FF[kept][:, kept], grams_FF[kept][:, gone] @ weight_DF.T[gone]
    )
    return float((change_FD * (grams_FF @ change_FD)).sum())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("width", [1, 2])
def test_what_goes_is_what_the_rest_makes_up_for(biased: bool, width: int) -> None:
    """One group after the other, each time the one with the least error by a fit of its own."""
    x_TF = numbers(40, 8, seed=4) @ numbers(8, 8, seed=5) + 1.0
    weight_DF = numbers(5, 8, seed=6)
    left, removed = list(range(8 // width)), list[int]()

    def inputs(groups: list[int]) -> list[int]:
        return [group * width + n for group in groups for n in range(width)]

    while len(left) > 2:
        out = min(left, key=lambda g: error_without(x_TF, weight_DF, inputs([g, *removed]), biased))
        left.remove(out)
        removed.insert(0, out)
    moments = moments_of(x_TF, x_TF @ weight_DF.T)
    assert moments.order(weight_DF, biased, 8 // width, 2).tolist() == [*left, *removed]


def test_inputs_in_another_order_are_fitted_alike() -> None:
    x_TF, y_TD, order_F = numbers(40, 7, seed=2), numbers(40, 5, seed=3), torch.randperm(7)
    linear = nn.Linear(7, 5, dtype=torch.float64)
    moved = moments_of(x_TF, y_TD)
    moved.reorder(order_F)
    weight_DF = linear.weight[:, order_F]
    there = moments_of(x_TF[:, order_F], y_TD).refit(weight_DF, linear.bias, 4)
    found = moved.refit(weight_DF, linear.bias, 4)
    assert all(torch.allclose(a, b) for a, b in zip(found, there, strict=True) if a is not None)


def said_by_parts(supernet: Supernet, part: str, inputs: Tensor, network: Architecture) -> Tensor:
    """What a part of the supernet says in a network, at all positions."""
    seen: list[Tensor] = []
    hook = supernet.get_submodule(part).register_forward_hook(
        lambda module, given, said: seen.append(said)
    )
    with torch.no_grad():
        supernet(inputs, network)
    hook.remove()
    return seen[0]


def changed(checkpoint: Checkpoint, layer: int, **sizes: Any) -> Architecture:
    """The checkpoint's network with other sizes in one layer."""
    architecture = checkpoint.architecture
    stack = architecture.encoder or architecture.decoder
    assert stack is not None
    layers = list(layers_of(architecture))
    layers[layer] = replace(layers[layer], **sizes)
    name = stack_name(architecture)
    return replace(architecture, **{name: replace(stack, layers=tuple(layers))})


@pytest.mark.parametrize("family", SEARCHED)
def test_small_ffns_are_nearer_to_the_checkpoint(
    checkpoints: dict[str, Checkpoint], family: str
) -> None:
    """On the batches that they are fitted to, against prefixes of the weights."""
    checkpoint, batches = checkpoints[family], [inputs_of(checkpoints[family], 1, batch=8)]
    space = space_around(checkpoint)
    plain = replace(space, model=replace(space.model, own_outputs=False))
    teacher = checkpoint.network()
    fitted, cut = (supernet_of(one, checkpoint, batches) for one in (space, plain))
    stack = stack_name(checkpoint.architecture)
    real = real_positions(teacher, batches[0])
    for layer in range(3):
        part = f"{stack}.blocks.{layer}.ffn"
        with torch.no_grad():
            right = said_by_parts(teacher.network, part, batches[0], checkpoint.architecture)
            errors = []
            for supernet in (fitted, cut):
                # Of the layer alone: what stands before it is the checkpoint's.
                network = changed(checkpoint, layer, ffn_dim=16)
                found = said_by_parts(supernet, part, batches[0], network)
                distance = (found - right).square().sum(dim=-1)
                errors.append(float((distance if real is None else distance[real]).sum()))
        assert errors[0] < 0.9 * errors[1]


@pytest.mark.parametrize("family", WITH_HEADS)
def test_fewer_heads_are_nearer_to_the_checkpoint(
    checkpoints: dict[str, Checkpoint], family: str
) -> None:
    checkpoint, batches = checkpoints[family], [inputs_of(checkpoints[family], 1, batch=8)]
    gene = "num_heads" if checkpoint.architecture.encoder else "self_num_heads"
    space = offering(space_around(checkpoint), gene, 2, 3, 4)
    groups = "num_kv_heads" if gene == "num_heads" else "self_num_kv_heads"
    plain = replace(space, model=replace(space.model, own_outputs=False))
    fitted, cut = (supernet_of(one, checkpoint, batches) for one in (space, plain))
    network = changed(checkpoint, 0, **{gene: 2, groups: None})
    with torch.no_grad():
        right = fitted(batches[0], checkpoint.architecture)
        errors = [
            sum(
                float((a - b).square().sum())
                for a, b in zip(_parts(supernet(batches[0], network)), _parts(right), strict=True)
            )
            for supernet in (fitted, cut)
        ]
    assert errors[0] < errors[1]
    own = f"projections.{getattr(layers_of(checkpoint.architecture)[0], kinds_gene(checkpoint))}"
    names = [name for name in fitted.state_dict() if f"{own}.outputs.2." in name]
    assert len(names) == 3 * 2


def _parts(said: Any) -> tuple[Tensor, ...]:
    return said if isinstance(said, tuple) else (said,)


def test_heads_that_share_keys_keep_their_weights(checkpoints: dict[str, Checkpoint]) -> None:
    """Fewer of them would read other keys, so that what they say is not known."""
    checkpoint = checkpoints["llama"]
    space = offering(space_around(checkpoint), "self_num_heads", 2, 4)
    weights = inherit(space, checkpoint, [inputs_of(checkpoint, 1)])
    own = "decoder.blocks.1.self_attention.projections.softmax.output"
    assert torch.equal(weights[f"{own}s.2.weight"], weights[f"{own}.weight"][:, :20])


@pytest.mark.parametrize("family", SEARCHED)
def test_with_all_its_own_outputs_a_network_is_cut_out(
    checkpoints: dict[str, Checkpoint], family: str
) -> None:
    checkpoint = checkpoints[family]
    space = space_around(checkpoint)
    supernet = supernet_of(space, checkpoint, [inputs_of(checkpoint, 1)])
    inputs = inputs_of(checkpoint, 2)
    network = changed(checkpoint, 1, ffn_dim=32)
    alone = extract(supernet, network)
    assert not any(".outers." in name or ".outputs." in name for name in alone.state_dict())
    with torch.no_grad():
        pairs = zip(_parts(alone(inputs)), _parts(supernet(inputs, network)), strict=True)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
    stack = stack_name(checkpoint.architecture)
    name = f"{stack}.blocks.1.ffn.outer"
    own = supernet.state_dict()[f"{name}s.32.weight"]
    assert torch.equal(alone.state_dict()[f"network.{name}.weight"], own)


def test_memory_decides_how_often_batches_are_read(
    checkpoints: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoints["vit"]
    space, batches = space_around(checkpoint), [inputs_of(checkpoint, 1)]
    once = inherit(space, checkpoint, batches)
    monkeypatch.setattr(refit, "MOMENTS_BYTES", 1)
    often = inherit(space, checkpoint, batches)
    assert all(torch.equal(often[name], tensor) for name, tensor in once.items())


def test_own_outputs_are_counted_and_written_down(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["gpt2"]
    space = space_around(checkpoint)
    plain = replace(space, model=replace(space.model, own_outputs=False))
    more = supernet_params(space) - supernet_params(plain)
    ffn = sum(24 * size + 24 for size in (16, 32))
    heads = sum(24 * 6 * count + 24 for count in (3,)) * 3  # softmax, linear, windows
    assert more == 3 * (ffn + heads)
    assert parse_space(dump_space(space), "mine.toml").digest == space.digest != plain.digest
    assert "own_outputs" not in plain.model.stated()
    for one in (space, plain):
        assert space_problem(one, checkpoint) is None


def test_own_outputs_learn_where_their_size_is_drawn(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["vit"]
    space = space_around(checkpoint)
    supernet = build_supernet(space)
    network = changed(checkpoint, 0, ffn_dim=16)
    supernet(inputs_of(checkpoint, 1), network).square().sum().backward()
    named = dict(supernet.named_parameters())
    part = "encoder.blocks.0.ffn"
    assert named[f"{part}.outers.16.weight"].grad is not None
    assert named[f"{part}.outers.32.weight"].grad is None
    assert named[f"{part}.outer.weight"].grad is None

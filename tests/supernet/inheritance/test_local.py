"""Blockwise local distillation of the kinds of attention around a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from search_spaces.architecture import Architecture, kind_order
from search_spaces.space import SearchSpace
from supernet.building import build_supernet
from supernet.extraction import Supernet
from supernet.inheritance import local as local_module
from supernet.inheritance.inherit import inherit
from supernet.inheritance.local import CHECKPOINT_UPDATES, LocalDistillation
from supernet.inheritance.parts import Weights, real_positions
from supernet.pretrained.checkpoint import Checkpoint, read_checkpoint
from supernet.pretrained.names import layer_kinds
from supernet.pretrained.space import space_around
from supernet.training.checkpoint import CheckpointFolder
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

KINDS = ("softmax", "linear", "window:3", "window:9")


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def checkpoints(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    place = tmp_path_factory.mktemp("checkpoints")
    return {name: read_checkpoint(write_model(hub, place / name, name)) for name in SEARCHED}


def space_of(checkpoint: Checkpoint, *kinds: str) -> SearchSpace:
    space = space_around(checkpoint)
    return offering(space, kinds_gene(checkpoint), *kinds) if kinds else space


def batches_of(checkpoint: Checkpoint) -> Callable[[int], Tensor]:
    return lambda update: inputs_of(checkpoint, 100 + update)


def first_weights(space: SearchSpace, checkpoint: Checkpoint) -> Weights:
    return inherit(space, checkpoint, [inputs_of(checkpoint, 1)])


def local(
    space: SearchSpace,
    checkpoint: Checkpoint,
    weights: Weights | None = None,
    updates: int = 12,
    **more: Any,
) -> LocalDistillation:
    weights = first_weights(space, checkpoint) if weights is None else weights
    given: dict[str, Any] = {"batches": batches_of(checkpoint), "learning_rate": 3e-3, **more}
    return LocalDistillation(space, weights, checkpoint, updates=updates, **given)


def same(one: Weights, other: Weights) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", SEARCHED)
def test_each_error_falls(
    checkpoints: dict[str, Checkpoint], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one batch again and again; windows share weights, in a layer of windows with its own."""
    monkeypatch.setattr(local_module, "JUDGED_BATCHES", 1)  # they are all the same
    checkpoint = checkpoints[family]
    kinds = {*layer_kinds(checkpoint.architecture), "linear", "window:2"}
    space = space_of(checkpoint, *sorted(kinds, key=kind_order))
    inputs = inputs_of(checkpoint, 5)
    learnt = local(space, checkpoint, updates=30, batches=lambda update: inputs)
    first: dict[str, float] = {}
    reports = []
    for report in learnt.run():
        reports.append(report)
        first = first or learnt.errors()
        mean = sum(learnt.errors().values()) / len(first)
        assert report.error == pytest.approx(mean)
    assert [report.update for report in reports] == list(range(1, 31))
    assert {key.split(".")[0] for key in first} == {"0", "1", "2"}
    last = learnt.errors()
    for layer, own in enumerate(layer_kinds(checkpoint.architecture)):
        assert last[f"{layer}.linear"] < 0.9 * first[f"{layer}.linear"]
        windows = [key for key in last if key.startswith(f"{layer}.window")]
        before, after = (sum(errors[key] for key in windows) for errors in (first, last))
        assert not windows or (after == before if "window" in own else after < 0.9 * before)


@pytest.mark.parametrize("family", SEARCHED)
def test_only_other_kinds_learn(checkpoints: dict[str, Checkpoint], family: str) -> None:
    checkpoint = checkpoints[family]
    space = space_of(checkpoint)
    weights = first_weights(space, checkpoint)
    learnt = local(space, checkpoint, weights, updates=2)
    list(learnt.run())
    after = learnt.weights()
    assert set(after) == set(weights)
    changed = {name for name in after if not torch.equal(after[name], weights[name])}
    assert changed and all("attention." in name for name in changed)
    supernet = supernet_of(space, after)
    inputs = inputs_of(checkpoint, 9)
    network = checkpoint.architecture
    with torch.no_grad():
        found, right = supernet(inputs, network), checkpoint.network()(inputs)
    pairs = zip(found, right, strict=True) if isinstance(found, tuple) else [(found, right)]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


def supernet_of(space: SearchSpace, weights: Weights) -> Supernet:
    with torch.random.fork_rng():
        supernet = build_supernet(space).eval()
    supernet.load_state_dict(weights)
    return supernet


@pytest.mark.parametrize("family", ["llama", "vit"])
def test_an_error_is_the_squared_distance_as_a_share(
    checkpoints: dict[str, Checkpoint], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the kind says to the input of its layer in the checkpoint's own network."""
    monkeypatch.setattr(local_module, "JUDGED_BATCHES", 1)
    checkpoint = checkpoints[family]
    space = space_of(checkpoint)
    weights = first_weights(space, checkpoint)
    learnt = local(space, checkpoint, weights, updates=0)
    assert list(learnt.run()) == []
    supernet = supernet_of(space, weights)
    inputs = batches_of(checkpoint)(0)
    decoder = family == "llama"
    blocks = (supernet.decoder if decoder else supernet.encoder).blocks  # type: ignore[union-attr]
    name = "self_attention" if decoder else "attention"
    given: list[tuple[Any, ...]] = []
    for block in blocks:
        attention = getattr(block, name)
        if decoder:
            attention.causal = _noting(attention.causal, given)
        else:
            attention.forward = _noting(attention.forward, given)
    with torch.no_grad():
        supernet(inputs, checkpoint.architecture)
    assert len(given) == 3
    for number, (call, arguments) in enumerate(given):
        with torch.no_grad():
            right = call(*arguments)
            x, _, *rest = arguments
            found = call(x, "linear", *rest)
        if decoder:
            right, found = right[0], found[0]
        error = float((found - right).square().sum() / right.square().sum())
        assert learnt.errors()[f"{number}.linear"] == pytest.approx(error, rel=1e-4)


def _noting(call: Any, given: list[tuple[Any, ...]]) -> Any:
    def noted(*arguments: Any) -> Any:
        given.append((call, arguments))
        return call(*arguments)

    return noted


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_layers_and_kinds_know_nothing_of_each_other(
    checkpoints: dict[str, Checkpoint], family: str
) -> None:
    """One kind in one layer ends as among many."""
    checkpoint = checkpoints[family]
    space = space_around(checkpoint)
    own = kinds_gene(checkpoint)
    alone = replace(
        space,
        slots=tuple(
            replace(slot, choices=(*_own_kind(checkpoint, slot.layer), "linear"))
            if slot.gene == own and slot.layer == 1
            else replace(slot, choices=_own_kind(checkpoint, slot.layer))
            if slot.gene == own
            else slot
            for slot in space.slots
        ),
    )
    weights = first_weights(space, checkpoint)
    few = {name: weights[name] for name in build_supernet(alone).state_dict()}
    stack = "decoder.layer_order"
    one = local(alone, checkpoint, {**few, stack: weights[stack]}, updates=4)
    many = local(space, checkpoint, weights, updates=4)
    for both in (one, many):
        list(both.run())
    assert set(one.errors()) == {"1.linear"}
    assert one.errors()["1.linear"] == many.errors()["1.linear"]
    learnt = many.weights()
    assert all(torch.equal(tensor, learnt[name]) for name, tensor in one.weights().items())


def _own_kind(checkpoint: Checkpoint, layer: int | None) -> tuple[str, ...]:
    decoder = checkpoint.architecture.decoder
    assert decoder is not None and layer is not None
    return (decoder.layers[layer].self_attention,)


def test_two_windows_share_their_projections(checkpoints: dict[str, Checkpoint]) -> None:
    """Each learns by both; of the checkpoint's own windows nothing is learnt."""
    checkpoint = checkpoints["gpt2"]
    space = space_of(checkpoint, *KINDS)
    names = [name for name in first_weights(space, checkpoint) if "projections.window" in name]
    assert len(names) == 3 * (8 + 2) and not any("window:" in name for name in names)
    learnt = local(space, checkpoint, updates=3)
    list(learnt.run())
    assert {f"0.{kind}" for kind in KINDS[1:]} <= set(learnt.errors())
    narrow = local(space_of(checkpoint, *KINDS[:3]), checkpoint, updates=3)
    list(narrow.run())
    name = "decoder.blocks.0.self_attention.projections.window.query.weight"
    assert not torch.equal(learnt.weights()[name], narrow.weights()[name])


def test_smaller_windows_leave_a_checkpoints_own_alone(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["mistral"]
    space = space_of(checkpoint, "linear", "window:2", "window:5")
    weights = first_weights(space, checkpoint)
    learnt = local(space, checkpoint, weights, updates=2)
    list(learnt.run())
    assert set(learnt.errors()) == {
        f"{n}.{kind}" for n in range(3) for kind in ("linear", "window:2")
    }
    for name, tensor in learnt.weights().items():
        assert torch.equal(tensor, weights[name]) == (".linear" not in name), name


def test_shared_weights_are_the_trunks(checkpoints: dict[str, Checkpoint]) -> None:
    """Where kinds share projections only feature maps learn."""
    checkpoint = checkpoints["gpt2"]
    space = space_of(checkpoint, "softmax", "linear", "window:3")
    model = replace(space.model, share_attention_weights=True, linear_kernel="hedgehog")
    space = replace(space, model=model)
    weights = first_weights(space, checkpoint)
    learnt = local(space, checkpoint, weights, updates=3)
    list(learnt.run())
    assert "0.window:3" in learnt.errors()
    for name, tensor in learnt.weights().items():
        assert torch.equal(tensor, weights[name]) == (".kernels." not in name), name


def test_with_nothing_to_learn_nothing_is_done(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["llama"]
    space = space_of(checkpoint, "softmax")
    weights = first_weights(space, checkpoint)
    learnt = local(space, checkpoint, weights)
    assert list(learnt.run()) == [] and learnt.errors() == {}
    assert same(learnt.weights(), weights)


def test_kinds_that_cannot_learn_are_judged_all_the_same(
    checkpoints: dict[str, Checkpoint],
) -> None:
    checkpoint = checkpoints["mistral"]
    space = space_of(checkpoint, "window:2", "window:5")
    weights = first_weights(space, checkpoint)
    learnt = local(space, checkpoint, weights)
    assert list(learnt.run()) == []
    errors = learnt.errors()
    assert errors.keys() == {f"{n}.window:2" for n in range(3)}
    assert all(0 < error < 2 for error in errors.values())
    assert same(learnt.weights(), weights)


@pytest.mark.parametrize("stop", [1, CHECKPOINT_UPDATES, CHECKPOINT_UPDATES + 2])
def test_stopped_and_gone_on_with_it_ends_in_the_same_bytes(
    checkpoints: dict[str, Checkpoint], stop: int, tmp_path: Path
) -> None:
    checkpoint = checkpoints["vit"]
    space = space_of(checkpoint)
    weights = first_weights(space, checkpoint)
    updates = CHECKPOINT_UPDATES + 4

    def one(folder: CheckpointFolder | None) -> LocalDistillation:
        return local(space, checkpoint, weights, updates, folder=folder)

    whole = one(None)
    list(whole.run())
    folder = CheckpointFolder(tmp_path, "digest")
    for report in one(folder).run():
        if report.update == stop:
            break
    second = one(folder)
    reports = [report.update for report in second.run()]
    done = stop // CHECKPOINT_UPDATES * CHECKPOINT_UPDATES
    assert reports == list(range(done + 1, updates + 1))
    assert same(second.weights(), whole.weights()) and second.errors() == whole.errors()


def test_what_is_taken_over_is_not_changed(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["gpt2"]
    space = space_of(checkpoint)
    weights = first_weights(space, checkpoint)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    list(local(space, checkpoint, weights, updates=2).run())
    assert same(weights, before)


@pytest.mark.parametrize("family", [name for name in ("bert", "gpt2", "vit") if name in SEARCHED])
def test_fewer_heads_say_it_as_well_as_they_can(
    checkpoints: dict[str, Checkpoint], family: str
) -> None:
    """Better than with the leading part of what all heads have learnt."""
    checkpoint = checkpoints[family]
    space = space_of(checkpoint)
    inputs = inputs_of(checkpoint, 5, batch=8)
    learnt = local(space, checkpoint, updates=3, batches=lambda update: inputs)
    list(learnt.run())
    weights = learnt.weights()
    stack, name = ("decoder", "self_attention") if family == "gpt2" else ("encoder", "attention")
    own = f"{stack}.blocks.0.{name}.projections.linear.output"
    heads, groups = (
        name.replace("attention", "num_heads"),
        name.replace("attention", "num_kv_heads"),
    )
    layers = layers_of(checkpoint.architecture)
    first = replace(layers[0], **{name: "linear", heads: 3, groups: None})
    whole = getattr(checkpoint.architecture, stack)
    network = replace(
        checkpoint.architecture, **{stack: replace(whole, layers=(first, *layers[1:]))}
    )
    teacher = checkpoint.network()
    real = real_positions(teacher, inputs)
    right = said_by(teacher.network, f"{stack}.blocks.0.{name}", inputs, checkpoint.architecture)
    cut = dict(weights)
    cut |= {
        f"{own}s.3.weight": weights[f"{own}.weight"][:, :18],
        f"{own}s.3.bias": weights[f"{own}.bias"],
    }
    errors = []
    for state in (weights, cut):
        found = said_by(supernet_of(space, state), f"{stack}.blocks.0.{name}", inputs, network)
        distance = (found - right).square().sum(dim=-1)
        errors.append(float((distance if real is None else distance[real]).sum()))
    assert errors[0] < 0.95 * errors[1]


def test_a_layer_of_all_heads_only_has_no_outputs_to_fit(
    checkpoints: dict[str, Checkpoint],
) -> None:
    """Beside layers that have some, and end as without it."""
    checkpoint = checkpoints["gpt2"]
    space = space_of(checkpoint)
    weights = first_weights(space, checkpoint)
    heads = checkpoint.architecture.decoder.layers[1].self_num_heads  # type: ignore[union-attr]
    narrowed = replace(
        space,
        slots=tuple(
            replace(slot, choices=(heads,))
            if (slot.gene, slot.layer) == ("self_num_heads", 1)
            else slot
            for slot in space.slots
        ),
    )
    few = {name: weights[name] for name in build_supernet(narrowed).state_dict()}
    few["decoder.layer_order"] = weights["decoder.layer_order"]
    one, every = local(narrowed, checkpoint, few, updates=2), local(space, checkpoint, weights, 2)
    for both in (one, every):
        list(both.run())
    learnt = every.weights()
    assert len(few) < len(weights)
    assert all(torch.equal(tensor, learnt[name]) for name, tensor in one.weights().items())


def said_by(model: Any, part: str, inputs: Tensor, network: Architecture) -> Tensor:
    """What a block of attention says in a network."""
    attention, said = model.get_submodule(part), []
    name = "causal" if "decoder" in part else "forward"
    call = getattr(attention, name)

    def noted(*arguments: Any) -> Any:
        found = call(*arguments)
        said.append(found[0] if isinstance(found, tuple) else found)
        return found

    setattr(attention, name, noted)
    with torch.no_grad():
        model(inputs, network)
    return said[0]


def test_what_begins_nearer_than_it_ends_stays_as_it_was(
    checkpoints: dict[str, Checkpoint],
) -> None:
    """A window that sees all is the layer itself; at a wild rate nothing else is kept either."""
    checkpoint = checkpoints["gpt2"]
    space = space_of(checkpoint, "softmax", "linear", "window:40")
    weights = first_weights(space, checkpoint)
    learnt = local(space, checkpoint, weights, updates=4)
    list(learnt.run())
    found = learnt.weights()
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor) or ".linear" in name or ".outputs." in name, name
    assert all(learnt.errors()[f"{layer}.window:40"] < 1e-9 for layer in range(3))
    wild = local(space, checkpoint, weights, updates=4, learning_rate=100.0)
    list(wild.run())
    for name, tensor in wild.weights().items():
        assert torch.equal(tensor, weights[name]) or ".outputs." in name, name

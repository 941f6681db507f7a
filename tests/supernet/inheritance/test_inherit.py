"""The first weights of a supernet around a checkpoint, of every family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from search_spaces.variation import sample_distinct
from supernet.building import build_network, build_supernet
from supernet.extraction import StandAlone, Supernet, extract
from supernet.inheritance.inherit import (
    ORDERING_BATCHES,
    inherit,
    layer_order,
    offers,
    with_layers,
)
from supernet.inheritance.parts import Weights, final_states, real_positions, stack_name
from supernet.inheritance.refit import Moments
from supernet.pretrained.checkpoint import Checkpoint, read_checkpoint
from supernet.pretrained.space import space_around
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

LAYERS = 4


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def checkpoints(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    place = tmp_path_factory.mktemp("checkpoints")
    return {
        name: read_checkpoint(
            write_model(
                hub,
                place / name,
                name,
                **({"n_layer": LAYERS} if name == "gpt2" else {"num_hidden_layers": LAYERS}),
                **({"layer_types": list(TYPES)} if name == "qwen3" else {}),
            )
        )
        for name in SEARCHED
    }


TYPES = ("sliding_attention", "full_attention", "sliding_attention", "full_attention")


class Inherited:
    """A checkpoint, the space around it, and the supernet's first weights."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.space = offering(space_around(checkpoint), "num_layers", 1, 2, 3, 4)
        self.batches = [inputs_of(checkpoint, seed) for seed in (1, 2, 3)]
        self.weights = inherit(self.space, checkpoint, self.batches)
        self.supernet = supernet_of(self.space, self.weights)
        self.teacher = checkpoint.network()

    @property
    def stack(self) -> str:
        return stack_name(self.checkpoint.architecture)

    @property
    def order(self) -> list[int]:
        return self.weights[f"{self.stack}.layer_order"].tolist()


@pytest.fixture(scope="module")
def inherited(checkpoints: dict[str, Checkpoint]) -> dict[str, Inherited]:
    return {name: Inherited(checkpoint) for name, checkpoint in checkpoints.items()}


def supernet_of(space: SearchSpace, weights: Weights) -> Supernet:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        supernet = build_supernet(space).eval()
    supernet.load_state_dict(weights)
    return supernet


def said(network: StandAlone | Supernet, inputs: Tensor, *architecture: Architecture) -> Tensor:
    """Logits, or states and embeddings behind each other."""
    with torch.no_grad():
        found = network(inputs, *architecture)
    return torch.cat([part.flatten() for part in found]) if isinstance(found, tuple) else found


def near(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((one - other).abs().max() < tolerance)


@pytest.mark.parametrize("family", SEARCHED)
def test_the_largest_network_is_the_checkpoint(
    inherited: dict[str, Inherited], family: str
) -> None:
    one = inherited[family]
    inputs = inputs_of(one.checkpoint, 9)
    found = said(one.supernet, inputs, one.checkpoint.architecture)
    assert near(found, said(one.teacher, inputs))


@pytest.mark.parametrize("family", SEARCHED)
def test_what_is_put_in_order_keeps_all_its_numbers(
    inherited: dict[str, Inherited], family: str
) -> None:
    """Heads and neurons are in another order, and not one of their weights is another."""
    one, moved = inherited[family], 0
    theirs = one.teacher.network.state_dict()
    for number in range(LAYERS):
        name = f"{one.stack}.blocks.{number}.ffn.inner.weight"
        assert torch.equal(one.weights[name].sort(dim=0)[0], theirs[name].sort(dim=0)[0])
        moved += not torch.equal(one.weights[name], theirs[name])
    assert moved == LAYERS


def hidden_of(network: StandAlone, part: str, inputs: Tensor) -> Tensor:
    """What a linear layer of a network is given at real positions, ``(T, F)``."""
    seen: list[Tensor] = []
    module = network.network.get_submodule(part)
    hook = module.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad():
        network(inputs)
    hook.remove()
    real = real_positions(network, inputs)
    return seen[0].flatten(0, 1) if real is None else seen[0][real]


def moments_of(one: Inherited, part: str) -> tuple[Moments, Tensor, bool]:
    """Of an output layer of the checkpoint, with its weight and whether it has a bias."""
    linear = one.teacher.network.get_submodule(part)
    assert isinstance(linear, torch.nn.Linear)
    moments = Moments.of(linear)
    for inputs in one.batches:
        x_1TF = hidden_of(one.teacher, part, inputs)[None]
        y_1TD = torch.nn.functional.linear(x_1TF, linear.weight, linear.bias)
        moments.add(x_1TF, y_1TD.detach(), None)
    return moments, linear.weight.detach(), linear.bias is not None


@pytest.mark.parametrize("family", SEARCHED)
def test_neurons_that_others_make_up_for_stand_last(
    inherited: dict[str, Inherited], family: str
) -> None:
    one = inherited[family]
    theirs = one.teacher.network.state_dict()
    for number, layer in enumerate(layers_of(one.checkpoint.architecture)):
        part = f"{one.stack}.blocks.{number}.ffn"
        least = min(map(int, one.space.slot(f"{one.stack}.{number}.ffn_dim").choices))
        moments, weight_DF, biased = moments_of(one, f"{part}.outer")
        order = moments.order(weight_DF, biased, layer.ffn_dim, least)
        right = theirs[f"{part}.inner.weight"][order]
        assert torch.equal(one.weights[f"{part}.inner.weight"], right)


@pytest.mark.parametrize("family", SEARCHED)
def test_heads_that_others_make_up_for_stand_last(
    inherited: dict[str, Inherited], family: str
) -> None:
    """Heads that share keys stay where they are."""
    one = inherited[family]
    attention = "attention" if one.stack == "encoder" else "self_attention"
    layers = layers_of(one.checkpoint.architecture)
    for number, layer in enumerate(layers):
        own = f"{one.stack}.blocks.{number}.{attention}.projections"
        theirs = one.teacher.network.state_dict()
        grouped = getattr(layer, "num_kv_heads", None) or getattr(layer, "self_num_kv_heads", None)
        order = list(range(4))
        if not grouped:
            gene = kinds_gene(one.checkpoint).replace("attention", "num_heads")
            least = min(map(int, one.space.slot(f"{one.stack}.{number}.{gene}").choices))
            moments, weight_DF, biased = moments_of(one, f"{own}.shared.output")
            order = moments.order(weight_DF, biased, 4, least).tolist()
        queries = theirs[f"{own}.shared.query.weight"].chunk(4)
        kind = getattr(layer, kinds_gene(one.checkpoint))
        name = "window" if kind.startswith("window") else kind
        for found in (name, "linear"):
            right = torch.cat([queries[head] for head in order])
            assert torch.equal(one.weights[f"{own}.{found}.query.weight"], right)


def shallow(one: Inherited, numbers: list[int]) -> StandAlone:
    """Some layers of the checkpoint, one of its networks, put together by hand."""
    settings, task = one.checkpoint.settings, one.checkpoint.task
    architecture = with_layers(one.checkpoint.architecture, numbers)
    network = build_network(settings, task, architecture)  # type: ignore[arg-type]
    theirs = one.teacher.network.state_dict()
    state = dict(network.network.state_dict())
    for name in state:
        parts = name.split(".")
        if parts[1] == "blocks":
            parts[2] = str(numbers[int(parts[2])])
        state[name] = theirs[".".join(parts)]
    network.network.load_state_dict(state)
    return network.eval()


@pytest.mark.parametrize("family", SEARCHED)
def test_layers_are_dropped_one_after_the_other(
    inherited: dict[str, Inherited], family: str
) -> None:
    """Each time the one whose loss changes the last states least; nobody asks below two."""
    one = inherited[family]
    space = offering(one.space, "num_layers", 2, 4)
    order = inherit(space, one.checkpoint, one.batches)[f"{one.stack}.layer_order"].tolist()
    kept, dropped = [0, 1, 2, 3], list[int]()
    batches = one.batches[:ORDERING_BATCHES]

    def loss(numbers: list[int]) -> float:
        network, total = shallow(one, numbers), 0.0
        for inputs in batches:
            with torch.no_grad():
                right = final_states(one.teacher, inputs, one.teacher.architecture)
                found = final_states(network, inputs, network.architecture)
            total += float((found - right).square().sum() / right.square().sum())
        return total

    while len(kept) > 2:
        least = min(kept, key=lambda n: loss([m for m in kept if m != n]))
        kept.remove(least)
        dropped.insert(0, least)
    assert sorted(order[:2]) == kept and order[2:] == dropped


@pytest.mark.parametrize("family", SEARCHED)
def test_fewer_layers_are_the_first_of_the_order(
    inherited: dict[str, Inherited], family: str
) -> None:
    one = inherited[family]
    inputs = inputs_of(one.checkpoint, 9)
    for count in (1, 2, 3):
        numbers = sorted(one.order[:count])
        network = with_layers(one.checkpoint.architecture, numbers)
        right = said(shallow(one, numbers), inputs)
        assert near(said(one.supernet, inputs, network), right)
        assert near(said(extract(one.supernet, network), inputs), right)


@pytest.mark.parametrize("family", SEARCHED)
def test_networks_are_cut_out_with_what_they_say(
    inherited: dict[str, Inherited], family: str
) -> None:
    one = inherited[family]
    inputs = inputs_of(one.checkpoint, 9)
    rows = sample_distinct(one.space, np.random.default_rng(0), 24)
    for network in one.space.decode(rows):
        alone = extract(one.supernet, network)
        assert "layer_order" not in "".join(alone.state_dict())
        assert near(said(alone, inputs), said(one.supernet, inputs, network))


def test_layers_take_each_others_places_only_where_they_can(
    checkpoints: dict[str, Checkpoint],
) -> None:
    """Layer 2 has no window; in place 1, where one is asked for, it would be at a loss."""
    checkpoint = checkpoints["llama"]
    space = space_around(checkpoint)
    narrow = [
        replace(slot, choices=("softmax",)) if slot.name == "decoder.2.self_attention" else slot
        for slot in space.slots
    ]
    space = offering(replace(space, slots=tuple(narrow)), "num_layers", 1, 2, 3, 4)
    assert offers(space, [0, 1]) and offers(space, [0, 1, 3]) and offers(space, [0, 3])
    assert not offers(space, [2]) and not offers(space, [0, 2, 3])
    teacher = checkpoint.network()
    for seed in range(3):
        order = layer_order(teacher, [inputs_of(checkpoint, seed)], space)
        assert all(offers(space, sorted(order[:count])) for count in (1, 2, 3))
    supernet = supernet_of(space, inherit(space, checkpoint, [inputs_of(checkpoint, 0)]))
    for network in space.decode(sample_distinct(space, np.random.default_rng(0), 24)):
        supernet(inputs_of(checkpoint, 1), network)


def test_shorter_networks_take_the_first_positions(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["gpt2"]
    space = space_around(checkpoint)
    space = replace(space, model=replace(space.model, max_length=20))
    weights = inherit(space, checkpoint, [inputs_of(checkpoint, 1)])
    inputs = inputs_of(checkpoint, 9)
    found = said(supernet_of(space, weights), inputs, checkpoint.architecture)
    assert near(found, said(checkpoint.network(), inputs))


def test_shared_projections_are_the_checkpoints(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["vit"]
    space = space_around(checkpoint)
    space = replace(space, model=replace(space.model, share_attention_weights=True))
    weights = inherit(space, checkpoint, [inputs_of(checkpoint, 1)])
    inputs = inputs_of(checkpoint, 9)
    found = said(supernet_of(space, weights), inputs, checkpoint.architecture)
    assert near(found, said(checkpoint.network(), inputs))


def test_what_a_checkpoint_has_none_of_is_drawn_by_the_seed(
    checkpoints: dict[str, Checkpoint],
) -> None:
    checkpoint = checkpoints["gpt2"]
    kinds = ("softmax", "linear:gated_delta")
    space = offering(space_around(checkpoint), kinds_gene(checkpoint), *kinds)
    one, other = (inherit(space, checkpoint, [inputs_of(checkpoint, 1)], seed=n) for n in (0, 1))
    differ = [name for name, tensor in one.items() if not torch.equal(tensor, other[name])]
    assert differ and all("gated_delta" in name for name in differ)


def test_weights_are_the_same_each_time(inherited: dict[str, Inherited]) -> None:
    one = inherited["gpt2"]
    again = inherit(one.space, one.checkpoint, one.batches)
    assert list(again) == list(one.weights)
    assert all(torch.equal(again[name], tensor) for name, tensor in one.weights.items())

"""Networks with fewer layers, brought back to what the checkpoint says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from supernet.extraction import StandAlone, extract
from supernet.inheritance.inherit import inherit, with_layers
from supernet.inheritance.parts import final_states, stack_name
from supernet.inheritance.realign import realign
from supernet.pretrained.checkpoint import Checkpoint, read_checkpoint
from supernet.pretrained.space import space_around
from tests.supernet.inheritance.test_inherit import supernet_of
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import (
    SEARCHED,
    inputs_of,
    kinds_gene,
    offering,
    write_model,
)

pytestmark = pytest.mark.export

FAMILIES = tuple(name for name in ("bert", "gpt2", "llama", "vit") if name in SEARCHED)


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(
    hub: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    family = request.param
    layers = {"n_layer" if family == "gpt2" else "num_hidden_layers": 4}
    place = tmp_path_factory.mktemp("checkpoints") / family
    return read_checkpoint(write_model(hub, place, family, **layers))


def distance(network: StandAlone, teacher: StandAlone, inputs: torch.Tensor) -> float:
    with torch.no_grad():
        found = final_states(network, inputs, network.architecture)
        right = final_states(teacher, inputs, teacher.architecture)
    return float((found - right).square().sum() / right.square().sum())


def test_what_says_the_same_stays_as_it_is(checkpoint: Checkpoint) -> None:
    teacher, network = checkpoint.network(), checkpoint.network()
    realign(network, teacher, range(4), [inputs_of(checkpoint, seed) for seed in (1, 2)])
    assert distance(network, teacher, inputs_of(checkpoint, 9)) < 1e-6


def test_dropped_layers_are_made_up_for(checkpoint: Checkpoint) -> None:
    """On the batches that it is fitted to; heads, FFNs and kinds may be others than before."""
    space = offering(space_around(checkpoint), "num_layers", 2, 4)
    batches = [inputs_of(checkpoint, seed, batch=8) for seed in (1, 2)]
    supernet = supernet_of(space, inherit(space, checkpoint, batches))
    numbers = getattr(supernet, stack_name(checkpoint.architecture)).kept(2)
    network = extract(supernet, with_layers(checkpoint.architecture, numbers))
    teacher = checkpoint.network()
    before = [distance(network, teacher, batch) for batch in batches]
    realign(network, teacher, numbers, batches)
    after = [distance(network, teacher, batch) for batch in batches]
    assert sum(after) < 0.7 * sum(before)
    assert not any(parameter.requires_grad is False for parameter in network.parameters())


def test_layers_without_attention_are_made_up_for(checkpoint: Checkpoint) -> None:
    """By their FFNs, which are all that is left of them, and by the layers behind them."""
    gene = kinds_gene(checkpoint)
    space = offering(space_around(checkpoint), gene, "softmax", "skip")
    batches = [inputs_of(checkpoint, seed, batch=8) for seed in (1, 2)]
    supernet = supernet_of(space, inherit(space, checkpoint, batches))
    row = space.encode([checkpoint.architecture])
    row[0, [space.slot_index[f"{space.stacks[0]}.{n}.{gene}"] for n in (1, 2)]] = 1
    (architecture,) = space.decode(space.canonical(row))
    network, teacher = extract(supernet, architecture), checkpoint.network()
    before = [distance(network, teacher, batch) for batch in batches]
    realign(network, teacher, range(4), batches)
    after = [distance(network, teacher, batch) for batch in batches]
    assert sum(after) < 0.7 * sum(before)

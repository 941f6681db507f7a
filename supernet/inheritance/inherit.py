"""The first weights of a supernet around a checkpoint.

Sizes are prefixes, so what matters most goes to the front: heads and neurons of an FFN are put in
order within their layer, which changes no output, and layers are put in the order in which they
are kept. Kinds of attention other than a layer's own begin with its queries, keys, values and
outputs. Output layers that a smaller size has for itself are fitted to what the whole layer says,
which decides the order too (`supernet.inheritance.refit`). The largest network with the
checkpoint's own kinds is the checkpoint.

Source: Hou et al., DynaBERT (2020), section 3.1, and Muralidharan et al., Minitron (2024), section
2.2, order heads and neurons by a score of each; here by what is lost without them once the others
make up for it. They drop layers by one score each; here the layer that is missed least is dropped,
then the next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from search_spaces.turns import give_way
from supernet.building import build_supernet
from supernet.depth import ORDER
from supernet.extraction import StandAlone
from supernet.inheritance.parts import (
    Weights,
    final_states,
    stack_name,
    stack_of,
)
from supernet.inheritance.refit import fitted_outputs
from supernet.pretrained.checkpoint import Checkpoint
from supernet.pretrained.names import layer_kinds, projections_name
from supernet.slices import prefix

ORDERING_BATCHES = 2
"""Batches by which layers are put in order: each is read once for every layer and every depth."""
PROJECTIONS = re.compile(r"(blocks\.(\d+)\.(?:self_)?attention\.)projections\.[^.]+")


def inherit(
    space: SearchSpace,
    checkpoint: Checkpoint,
    batches: Sequence[Tensor],
    device: str = "cpu",
    seed: int = 0,
) -> Weights:
    """The state of a supernet of the space whose largest network is the checkpoint.

    Args:
        space: around the checkpoint, see `supernet.pretrained.space.space_problem`.
        checkpoint: whose weights are taken over, up to the order of heads and neurons.
        batches: inputs of the model by which importance is judged: tokens ``(B, N)`` or images.
        device: where that is computed.
        seed: of parameters that the checkpoint has none of.

    Returns:
        Parameters by name, and the order of layers, on the CPU.

    Raises:
        DataError: for a damaged file, and for a weight that is no finite number.
    """
    teacher = checkpoint.network().requires_grad_(False).to(device)
    order = layer_order(teacher, batches[:ORDERING_BATCHES], space)
    fitted = fitted_outputs(teacher, batches, space)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state: Weights = build_supernet(space).state_dict()
    known = {**teacher.network.state_dict(), **fitted}
    kinds = layer_kinds(checkpoint.architecture)
    names = [projections_name(checkpoint.settings, kind) for kind in kinds]
    for name, drawn in state.items():
        source = PROJECTIONS.sub(lambda found: f"{found[1]}{names[int(found[2])]}", name)
        if source in known:
            # The same shape, but for the positions that a space may have fewer of.
            state[name] = prefix(known[source], *drawn.shape).cpu().clone()
    state[f"{stack_name(checkpoint.architecture)}.{ORDER}"] = torch.tensor(order)
    return state


@torch.no_grad()
def layer_order(teacher: StandAlone, batches: Sequence[Tensor], space: SearchSpace) -> list[int]:
    """Numbers of all layers, those that are kept longest first.

    A layer is only dropped where those behind it offer what is asked of their new places, which
    matters to spaces whose layers differ.

    Args:
        teacher: on its own.
        batches: its inputs.
        space: whose depths are asked for.

    Returns:
        A permutation. Of the first of it, as many as the least depth, the order means nothing.
    """
    depths = [int(n) for slot in space.slots if slot.gene == "num_layers" for n in slot.choices]
    whole = [final_states(teacher, batch, teacher.architecture) for batch in batches]
    stack, dropped = stack_of(teacher), list[int]()
    kept = list(range(len(stack.blocks)))
    while len(kept) > min(depths):
        rests = {one: [n for n in kept if n != one] for one in kept}
        without = {one: rest for one, rest in rests.items() if offers(space, rest)}
        losses = {}
        for one, rest in without.items():
            give_way()
            stack.order_layers([*rest, one, *dropped])
            smaller = with_layers(teacher.architecture, rest)
            states = [final_states(teacher, batch, smaller) for batch in batches]
            losses[one] = sum(map(relative_error, states, whole))
        least = min(losses, key=lambda one: losses[one])
        kept, dropped = without[least], [least, *dropped]
    stack.order_layers(range(len(stack.blocks)))
    return [*kept, *dropped]


def offers(space: SearchSpace, numbers: Sequence[int]) -> bool:
    """Whether layers of a supernet can stand in the first places of its networks.

    Args:
        space: the supernet's.
        numbers: of the layers, in the order of the places.
    """
    return all(
        set(slot.choices)
        <= set(space.slot(f"{slot.stack}.{numbers[slot.layer]}.{slot.gene}").choices)
        for slot in space.slots
        if slot.layer is not None and slot.layer < len(numbers)
    )


def with_layers(architecture: Architecture, numbers: Sequence[int]) -> Architecture:
    """A network with some of the layers of another one."""
    encoder, decoder = architecture.encoder, architecture.decoder
    if encoder is not None:
        layers = tuple(encoder.layers[number] for number in numbers)
        return replace(architecture, encoder=replace(encoder, layers=layers))
    assert decoder is not None
    taken = tuple(decoder.layers[number] for number in numbers)
    return replace(architecture, decoder=replace(decoder, layers=taken))


def relative_error(found: Tensor, right: Tensor) -> float:
    """Squared distance, as a share of what it should be."""
    return float((found - right).square().sum() / right.square().sum().clamp(min=1e-30))

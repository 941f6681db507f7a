"""The first weights of a supernet around a checkpoint.

Sizes are prefixes, so what matters most goes to the front: heads and neurons of an FFN are put in
order within their layer, which changes no output, and layers are put in the order in which they
are kept. Kinds of attention other than a layer's own begin with its queries, keys, values and
outputs. Output layers that a smaller size has for itself are fitted to what the whole layer says
(`supernet.inheritance.refit`). The largest network with the checkpoint's own kinds is the
checkpoint.

Source: Hou et al., DynaBERT (2020), section 3.1, and Muralidharan et al., Minitron (2024), section
2.2, order heads and neurons by activations on a few batches; here by the energy of what each adds
to the layer's output. They drop layers by one score each; here the layer that is missed least is
dropped, then the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from supernet.blocks import Projections
from supernet.building import build_supernet
from supernet.depth import ORDER
from supernet.extraction import StandAlone
from supernet.inheritance.parts import (
    LayerParts,
    Weights,
    final_states,
    layer_parts,
    real_positions,
    stack_name,
    stack_of,
)
from supernet.inheritance.refit import fitted_outputs
from supernet.layers import ElasticFeedForward, prefix
from supernet.pretrained.checkpoint import Checkpoint
from supernet.pretrained.names import layer_kinds, projections_name

ORDERING_BATCHES = 2
"""Batches by which layers are put in order: each is read once for every layer and every depth."""
PROJECTIONS = re.compile(r"(blocks\.(\d+)\.(?:self_)?attention\.)projections\.[^.]+")


def inherit(
    space: SearchSpace, checkpoint: Checkpoint, batches: Sequence[Tensor], device: str = "cpu"
) -> Weights:
    """The state of a supernet of the space whose largest network is the checkpoint.

    Args:
        space: around the checkpoint, see `supernet.pretrained.space.space_problem`.
        checkpoint: whose weights are taken over, up to the order of heads and neurons.
        batches: inputs of the model by which importance is judged: tokens ``(B, N)`` or images.
        device: where that is computed.

    Returns:
        Parameters by name, and the order of layers, on the CPU.

    Raises:
        DataError: for a damaged file, and for a weight that is no finite number.
    """
    teacher = checkpoint.network().requires_grad_(False).to(device)
    parts = layer_parts(teacher)
    with _energies(teacher, parts) as energies, torch.no_grad():
        for batch in batches:
            energies.real = real_positions(teacher, batch)
            final_states(teacher, batch, teacher.architecture)
    order = layer_order(teacher, batches[:ORDERING_BATCHES], space)
    for part, heads, neurons in zip(parts, energies.of_heads(), energies.of_neurons(), strict=True):
        if part.groups is None:
            order_heads(part.projections, part.num_heads, heads.argsort(descending=True))
        order_neurons(part.ffn, neurons.argsort(descending=True))
    fitted = fitted_outputs(teacher, batches, space)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of parameters that the checkpoint has none of
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


class Energies:
    """What each head and neuron adds to the outputs of its layer, squared and summed up.

    Attributes:
        real: positions that count in the batch that is read, ``(B, N)``; None for all.
    """

    def __init__(self, parts: Sequence[LayerParts]) -> None:
        self._parts = parts
        self._heads: list[Tensor | float] = [0.0 for _ in parts]
        self._neurons: list[Tensor | float] = [0.0 for _ in parts]
        self.real: Tensor | None = None

    def add_heads(self, number: int, merged_BNW: Tensor) -> None:
        """Count what the heads of a layer say."""
        x_THD = self._counted(merged_BNW).unflatten(-1, (self._parts[number].num_heads, -1))
        self._heads[number] += torch.einsum("thd,the->hde", x_THD, x_THD)

    def add_neurons(self, number: int, hidden_BNF: Tensor) -> None:
        """Count what the neurons of a layer say."""
        self._neurons[number] += self._counted(hidden_BNF).square().sum(dim=0)

    def of_heads(self) -> list[Tensor]:
        """Of each layer, ``(H,)``: the sum over positions of |W_h o_h|²."""
        found = []
        for part, gram_HDE in zip(self._parts, self._heads, strict=True):
            weight_HWD = part.projections.output.weight.unflatten(1, (part.num_heads, -1))
            weight_HWD = weight_HWD.transpose(0, 1)
            found.append(torch.einsum("hwd,hde,hwe->h", weight_HWD, gram_HDE, weight_HWD))
        return found

    def of_neurons(self) -> list[Tensor]:
        """Of each layer, ``(F,)``."""
        columns = [part.ffn.outer.weight.square().sum(dim=0) for part in self._parts]
        return [sums * own for sums, own in zip(self._neurons, columns, strict=True)]

    def _counted(self, x_BND: Tensor) -> Tensor:
        return x_BND.flatten(0, 1) if self.real is None else x_BND[self.real]


@contextmanager
def _energies(network: StandAlone, parts: Sequence[LayerParts]) -> Iterator[Energies]:
    """Energies of what a network computes within the context."""
    energies, hooks = Energies(parts), []

    def hook(add: Callable[[int, Tensor], None], number: int) -> Callable[..., None]:
        return lambda module, inputs: add(number, inputs[0])

    for number, part in enumerate(parts):
        heads, neurons = part.projections.output, part.ffn.outer
        hooks.append(heads.register_forward_pre_hook(hook(energies.add_heads, number)))
        hooks.append(neurons.register_forward_pre_hook(hook(energies.add_neurons, number)))
    try:
        yield energies
    finally:
        for one in hooks:
            one.remove()


def order_heads(projections: Projections, num_heads: int, order_H: Tensor) -> None:
    """Put heads in another order, which changes no output beyond rounding.

    Args:
        projections: with as many heads of keys as of queries.
        num_heads: how many.
        order_H: numbers of the heads, first to last.
    """
    for linear in (projections.query, projections.key, projections.value):
        for parameter in (linear.weight, linear.bias):
            if parameter is not None:
                parts = parameter.data.unflatten(0, (num_heads, -1))
                parameter.data = parts[order_H].flatten(0, 1)
    parts = projections.output.weight.data.unflatten(1, (num_heads, -1))
    projections.output.weight.data = parts[:, order_H].flatten(1)


def order_neurons(ffn: ElasticFeedForward, order_F: Tensor) -> None:
    """Put the neurons of a feed-forward network in another order, which changes no output."""
    for linear in (ffn.inner, ffn.gate):
        if linear is not None:
            linear.weight.data = linear.weight.data[order_F]
            if linear.bias is not None:
                linear.bias.data = linear.bias.data[order_F]
    ffn.outer.weight.data = ffn.outer.weight.data[:, order_F]

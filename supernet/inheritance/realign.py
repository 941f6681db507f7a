"""A whole network fitted anew from its first layer to its last, without training.

Layers of a smaller network are given what they never saw: what layers that are gone would have
done is missing, and the errors of those below add up. So each output layer in turn is fitted to
bring the sum of residuals back to where the checkpoint's is at the same place; that of a layer
behind which others are gone, to where it is behind them.

Source: He et al., Channel Pruning (2017), section 3.2, fit layer after layer on what the layers
fitted before give, to the outputs of the whole network; here to sums of residuals, which make up
for dropped layers too.

Shapes: B rows, N positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.turns import give_way
from supernet.extraction import StandAlone
from supernet.inheritance.parts import final_states, layer_parts, real_positions, stack_of
from supernet.inheritance.refit import Moments

Sums = dict[tuple[int, int], Tensor]
"""Number of a layer, and 0 behind its attention or 1 behind its FFN → sum of residuals there."""


@torch.no_grad()
def realign(
    network: StandAlone, teacher: StandAlone, numbers: Sequence[int], batches: Sequence[Tensor]
) -> None:
    """Fit the output layers of a network on its own, in place.

    Args:
        network: of some layers of the teacher's, of any sizes and kinds of attention.
        teacher: the checkpoint's network.
        numbers: of the network's layers in the teacher, ascending.
        batches: inputs of both.
    """
    last = len(stack_of(teacher).blocks)
    ends = [after - 1 for _, after in pairwise([*numbers, last])]
    places = [((n, 0), (end, 1)) for n, end in zip(numbers, ends, strict=True)]
    wanted = [
        _sums_of(teacher, batch, {one for pair in places for one in pair}) for batch in batches
    ]
    real = [real_positions(network, batch) for batch in batches]
    calls = [_calls_of(network, batch) for batch in batches]
    states = [call[0][0] for call in calls]
    parts = layer_parts(network)
    for number, block in enumerate(stack_of(network).blocks):
        own = parts[number].projections
        outputs = None if own is None else own.output, parts[number].ffn.outer
        for half, (linear, place) in enumerate(zip(outputs, places[number], strict=True)):
            if linear is None:
                continue
            moments = Moments.of(linear)
            for row, x_BND in enumerate(states):
                give_way()
                with _summed([block]) as sums, _seen(linear) as seen:
                    block(x_BND, *calls[row][number][1:])
                given, said = seen[0]
                moments.add(given, wanted[row][place] - sums[0, half] + said, real[row])
            weight, bias = moments.refit(linear.weight, linear.bias, linear.in_features)
            linear.weight.copy_(weight)
            if linear.bias is not None and bias is not None:
                linear.bias.copy_(bias)
        after = [block(x, *calls[row][number][1:]) for row, x in enumerate(states)]
        states = [one[0] if isinstance(one, tuple) else one for one in after]


def _sums_of(teacher: StandAlone, batch: Tensor, places: set[tuple[int, int]]) -> Sums:
    with _summed(stack_of(teacher).blocks) as sums:
        final_states(teacher, batch, teacher.architecture)
    return {place: sums[place] for place in places}


def _calls_of(network: StandAlone, batch: Tensor) -> list[tuple[Any, ...]]:
    """What each block of a network is called with."""
    calls: list[tuple[Any, ...]] = []
    blocks = stack_of(network).blocks
    hooks = [
        one.register_forward_pre_hook(lambda block, given: calls.append(given)) for one in blocks
    ]
    try:
        final_states(network, batch, network.architecture)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


@contextmanager
def _summed(blocks: Sequence[nn.Module] | nn.ModuleList) -> Iterator[Sums]:
    """The sums of residuals within blocks that are called in the context."""
    sums: Sums = {}
    hooks = []

    def given(place: tuple[int, int]) -> Callable[..., None]:
        return lambda module, inputs: sums.update({place: inputs[0]})

    def said(place: tuple[int, int]) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            sums[place] = output[0] if isinstance(output, tuple) else output

        return keep

    for number, block in enumerate(blocks):
        own: Any = block
        if own.pre_norm:
            hooks.append(own.ffn_norm.register_forward_pre_hook(given((number, 0))))
            hooks.append(own.register_forward_hook(said((number, 1))))
        else:
            norm = own.attention_norm if hasattr(own, "attention_norm") else own.self_norm
            hooks.append(norm.register_forward_pre_hook(given((number, 0))))
            hooks.append(own.ffn_norm.register_forward_pre_hook(given((number, 1))))
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _seen(linear: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """What a layer is given and what it says within the context, call by call."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = linear.register_forward_hook(
        lambda module, inputs, output: seen.append((inputs[0], output))
    )
    try:
        yield seen
    finally:
        hook.remove()

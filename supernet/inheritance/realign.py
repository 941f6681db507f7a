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
    real = [real_positions(network, batch) for batch in batches]
    states, calls = _begun(network, batches)
    truths, true_calls = _begun(teacher, batches)
    parts, begin = layer_parts(network), 0
    for number, block in enumerate(stack_of(network).blocks):
        # The teacher goes along, up to where this layer ends: all of its sums would take too much.
        passed = slice(begin, ends[number] + 1)
        places = (numbers[number] - begin, 0), (ends[number] - begin, 1)
        wanted = []
        for row, x_BND in enumerate(truths):
            give_way()
            blocks = stack_of(teacher).blocks[passed]
            with _summed(blocks) as sums:
                for other, rest in zip(blocks, true_calls[row][passed], strict=True):
                    x_BND = _state(other(x_BND, *rest))
            truths[row] = x_BND
            wanted.append([sums[place] for place in places])
        begin = ends[number] + 1
        own = parts[number].projections
        outputs = None if own is None else own.output, parts[number].ffn.outer
        for half, linear in enumerate(outputs):
            if linear is None:
                continue
            moments = Moments.of(linear)
            for row, x_BND in enumerate(states):
                give_way()
                with _summed([block]) as sums, _seen(linear) as seen:
                    block(x_BND, *calls[row][number])
                given, said = seen[0]
                moments.add(given, wanted[row][half] - sums[0, half] + said, real[row])
            weight, bias = moments.refit(linear.weight, linear.bias, linear.in_features)
            linear.weight.copy_(weight)
            if linear.bias is not None and bias is not None:
                linear.bias.copy_(bias)
        states = [_state(block(x, *calls[row][number])) for row, x in enumerate(states)]


def _state(output: Any) -> Tensor:
    """What a block gives to the next."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _begun(
    network: StandAlone, batches: Sequence[Tensor]
) -> tuple[list[Tensor], list[list[tuple[Any, ...]]]]:
    """Of each batch what the first block of a network reads, and what all are given besides."""
    states, calls = [], []
    for batch in batches:
        given = _calls_of(network, batch)
        states.append(given[0][0])
        calls.append([one[1:] for one in given])
    return states, calls


def _calls_of(network: StandAlone, batch: Tensor) -> list[tuple[Any, ...]]:
    """What each block of a network is called with; of all but the first without the states."""
    calls: list[tuple[Any, ...]] = []

    def keep(block: nn.Module, given: tuple[Any, ...]) -> None:
        calls.append((None, *given[1:]) if calls else given)

    hooks = [one.register_forward_pre_hook(keep) for one in stack_of(network).blocks]
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

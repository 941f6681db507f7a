"""The state behind a long context, of which only the beginning is read.

What a token costs behind 8,192 others does not depend on what these were. So a beginning is read,
and repeated to the shapes that the whole context would leave, which torch's meta device tells
without computing anything: whatever the operator, and however its state grows.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import Tensor, nn

from supernet.data.tokenizer import BOS
from supernet.decoding_state import DecodingState
from supernet.extraction import StandAlone

BEGINNING = 64  # positions


def start_of(network: StandAlone, tokens_BN: Tensor) -> DecodingState:
    """The state of a language model before these tokens: its memory is full, where it has one."""
    decoder = network.architecture.decoder
    assert decoder is not None
    return network.start(tokens_BN.new_full((len(tokens_BN), decoder.memory_length), BOS))


def filled_state(network: StandAlone, tokens_BN: Tensor) -> DecodingState:
    """A state as behind these tokens in shapes, types and positions, though not in its numbers.

    Each part lies in one piece of memory, as the states do that a step leaves.

    Args:
        network: a language model.
        tokens_BN: the context; all of it is read where it is short.
    """
    beginning = tokens_BN[:, :BEGINNING]
    state = network.prefill(beginning, start_of(network, beginning))[1]
    left_out = tokens_BN.shape[1] - beginning.shape[1]
    if not left_out:
        return state
    shapes = _on_meta(network), tokens_BN.to("meta")
    whole = shapes[0].prefill(shapes[1], start_of(*shapes))[1]
    assert state.states is not None and whole.states is not None
    states = tuple(
        tuple(_lengthened(part, like) for part, like in zip(short, long, strict=True))
        for short, long in zip(state.states, whole.states, strict=True)
    )
    return replace(state, position=whole.position, states=states)


def _on_meta(network: StandAlone) -> StandAlone:
    """A copy without numbers."""
    empty: dict[int, Tensor] = {
        id(one): nn.Parameter(one.detach().to("meta"), requires_grad=False)
        for one in network.parameters()
    }
    empty |= {id(one): one.to("meta") for one in network.buffers()}
    return copy.deepcopy(network, empty)


def _lengthened(part: Tensor, like: Tensor) -> Tensor:
    lengths = zip(like.shape, part.shape, strict=True)
    whole = part.repeat([-(-long // short) if short else 1 for long, short in lengths])
    return whole[tuple(slice(length) for length in like.shape)].contiguous()

"""What a decoding model remembers between two calls: of a text, and of its sources."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from search_spaces.architecture import Architecture
from supernet.attention.base import State
from supernet.attention.softmax import last_keys
from supernet.decoder import Memories, States
from supernet.plan import decoder_of


@dataclass(frozen=True, slots=True)
class DecodingState:
    """All that has to be remembered between two tokens.

    Attributes:
        architecture: the network that decodes.
        position: how many positions of the present segment were decoded.
        states: of every layer's self-attention, memory of earlier segments included; None where
            nothing was read yet.
        memories: of every layer's cross-attention, one for each source; None where there is none.
    """

    architecture: Architecture
    position: int
    states: States | None
    memories: Memories

    def next_segment(self) -> DecodingState:
        """The state before the next segment of the text.

        Of every layer's keys and values the last `memory_length` positions stay, without gradient;
        a network without a memory forgets the text. Positions are counted from 0 again: the
        model's `max_length` bounds a segment, not the text.

        Source: Dai et al., "Transformer-XL" (2019), equations of section 3.2. Theirs keeps each
        layer's input and projects it anew; keys and values cost less and are the same while the
        weights stay. Through ours no gradient reaches the projections.
        """
        length = decoder_of(self.architecture).memory_length
        states = None
        if length and self.states is not None:
            states = tuple(last_keys(state, length) for state in self.states)
        return replace(self, position=0, states=states)

    def reorder(self, rows: Tensor) -> DecodingState:
        """The state of these rows of the batch; a row may come up often or not at all.

        Neighbouring rows that share a source must go on sharing it, as beams of a sentence do.
        """
        if self.states is None:
            return self
        return replace(self, states=tuple(_taken(state, rows) for state in self.states))

    def keep_sources(self, sources: Tensor) -> DecodingState:
        """The state with these sources only; their rows are chosen with `reorder`."""
        kept = tuple(None if m is None else _taken(m, sources) for m in self.memories)
        return replace(self, memories=kept)


def _taken(state: State, rows: Tensor) -> State:
    return tuple(part.index_select(0, rows) for part in state)

"""The contract of an attention kernel, and what all kernels need: positions and precision.

Shapes: B batch, H heads, N queries, M keys, D width of one head. N and M count *states*: with span
P a position has P of them, next to each other (state r stands at position ``r // P``).

Three ways to attend, of which an encoder needs only the first:

* ``forward``: every state sees every state (encoder self-attention);
* ``causal``: a state sees its own position and those before it (decoder self-attention). It takes
  and returns what has to be carried on, so that one call for a whole sequence, and a call for each
  token, are the same computation;
* ``memory`` and ``read``: keys and values of another sequence are put away once, and then read by
  any number of queries (cross-attention).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from search_spaces.errors import UsageError

State = tuple[Tensor, ...]
"""What attention carries from call to call: tensors whose first dimension is the batch."""


class AttentionKernel(nn.Module, ABC):
    """What happens between the input projections and the output projection of attention.

    A kernel is elastic: the number and width of the heads come with the queries, and a kernel with
    parameters reads the part it needs. The rule for every parameter is the same: the parameter of a
    smaller network is the prefix, along every dimension, of the larger network's, and reading it
    makes a view. A stand-alone network's kernel is built with its own sizes.

    Attributes:
        takes_groups: keys and values come with as many heads as they were projected to, each for a
            group of queries' heads, so that a state holds no more; else they come repeated, with
            one for each head of queries.
        reads_input: `forward` and `causal` are given the block's input besides, ``x_BND``.
        reads_positions: `causal` is given the new states' positions besides, ``positions_1N``,
            padding before them included; None at the start of a sequence counts them from 0.
    """

    takes_groups: ClassVar[bool] = False
    in_full: ClassVar[bool] = False
    reads_input: ClassVar[bool] = False
    reads_positions: ClassVar[bool] = False

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the initial parameters anew; kernels without random parameters do nothing.

        Args:
            generator: source of randomness, on the parameters' device; None is torch's own, from
                which a constructor draws, as those of torch's layers do.
        """

    @abstractmethod
    def forward(
        self,
        q_BHND: Tensor,
        k_BHMD: Tensor,
        v_BHMD: Tensor,
        *,
        key_mask_BM: Tensor | None,
        span: int = 1,
    ) -> Tensor:
        """Attend.

        Args:
            q_BHND: queries. Kernels that know positions take query r and key r to stand at the
                same position (self-attention, N = M).
            k_BHMD: keys.
            v_BHMD: values.
            key_mask_BM: True at real states, False at padding; None when all are real. What stands
                at padding changes nothing elsewhere, but it has to be finite.
            span: states per position.

        Returns:
            Tensor ``(B, H, N, D)``; finite, but without meaning, in rows of padding. A sample with
            no real key at all gives zeros.

        Raises:
            UsageError: for more positions than the model's `max_length`, in kernels that have one.
                Only seen without a mask: a mask's contents are not read back from the device.
        """

    def causal(
        self,
        q_BHND: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        *,
        key_mask_BN: Tensor | None = None,
        span: int = 1,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """Attend to one's own position and to those before it.

        All states of a position see each other (the block reading of OmniNet's mask).

        Args:
            q_BHND: queries of new states, which follow those that `state` has seen.
            k_BHND: their keys.
            v_BHND: their values.
            key_mask_BN: True at real ones of the new states; None when all are. Padding may stand
                before and after the real states; where a state is carried on, only before.
            span: states per position; N is a multiple of it.
            state: what the last call returned; None at the start of a sequence.

        Returns:
            Tensor ``(B, H, N, D)`` as from `forward`, and the state after these positions.

        Raises:
            UsageError: as `forward` does, at the start of a sequence; and from kernels that cannot
                be causal.
        """
        raise UsageError(self._no_decoder())

    def memory(
        self, k_BHMD: Tensor, v_BHMD: Tensor, *, key_mask_BM: Tensor | None, span: int = 1
    ) -> State:
        """Put away the keys and values of another sequence.

        Args:
            k_BHMD: keys.
            v_BHMD: values.
            key_mask_BM: True at real states, False at padding; None when all are real.
            span: states per position, for example the outputs of several encoder layers. Kernels
                that know positions give all of them the same one.

        Raises:
            UsageError: as `forward` does, and from kernels that cannot stand in a decoder.
        """
        raise UsageError(self._no_decoder())

    def read(self, q_BHND: Tensor, memory: State, positions_1N: Tensor) -> Tensor:
        """Attend to a memory of this kernel; ``(B, H, N, D)``, zeros where it holds nothing real.

        Args:
            q_BHND: queries.
            memory: what `memory` returned, for the same batch and heads.
            positions_1N: positions of the queries in their own sequence, from 0.
        """
        raise UsageError(self._no_decoder())

    def _no_decoder(self) -> str:
        return (
            f"{type(self).__name__} cannot stand in a decoder: it mixes positions before it "
            "attends, so no part of the past can be left out; choose another kernel in the "
            "space's [model] table"
        )


def state_positions(
    key_mask_BM: Tensor | None, num_states: int, span: int, device: torch.device
) -> Tensor:
    """Position of each state, counted from the first real token, so that padding moves nothing.

    Returns:
        Integers ``(B, M)``, or ``(1, M)`` without a mask; negative in padding before the first
        real token.
    """
    positions_M = by_span(torch.arange(num_states, device=device), span)
    if key_mask_BM is None:
        return positions_M[None]
    return positions_M[None] - first_position(key_mask_BM, span)[:, None]


def for_states(x_BN: Tensor, span: int) -> Tensor:
    """A mask or numbers of positions, repeated for the `span` states of each: ``(B, N * span)``."""
    return x_BN.repeat_interleave(span, dim=1)


def own_positions(
    key_mask_BN: Tensor | None,
    num_states: int,
    span: int,
    positions_1N: Tensor | None,
    padding_B: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Positions of new states in their own texts: ``(B, N)``, or ``(1, N)`` without padding.

    Args:
        key_mask_BN: True at real ones; None when all are.
        num_states: N.
        span: states per position.
        positions_1N: padding included; None at the start of a sequence.
        padding_B: positions of padding that stood before; None for none.
        device: of what is returned.
    """
    if key_mask_BN is None and positions_1N is not None:
        return positions_1N if padding_B is None else positions_1N - padding_B[:, None]
    positions_BN = state_positions(key_mask_BN, num_states, span, device)
    if positions_1N is not None:
        positions_BN = positions_BN + positions_1N[:, :1]
    return positions_BN if padding_B is None else positions_BN - padding_B[:, None]


def padded_positions(
    key_mask_BN: Tensor | None, span: int, padding_B: Tensor | None
) -> Tensor | None:
    """Positions of padding up to the end of new states, ``(B,)``; None where none was masked."""
    if key_mask_BN is None:
        return padding_B
    new_B = by_span((~key_mask_BN).sum(dim=1), span)
    return new_B if padding_B is None else padding_B + new_B


def first_position(key_mask_BM: Tensor, span: int) -> Tensor:
    """Position ``(B,)`` of the first real state; 0 where there is none."""
    return by_span(key_mask_BM.to(torch.int8).argmax(dim=1), span)


def by_span(numbers: Tensor, span: int) -> Tensor:
    """Positions, of numbers of states."""
    return numbers if span == 1 else numbers // span


def repeated_heads(x_BGMD: Tensor, num_heads: int) -> Tensor:
    """Keys or values of G heads, each repeated for the heads of its group: ``(B, H, M, D)``."""
    groups = x_BGMD.shape[1]
    return x_BGMD if groups == num_heads else x_BGMD.repeat_interleave(num_heads // groups, dim=1)


def check_length(num_states: int, span: int, max_length: int) -> None:
    """Refuse unpadded input that is longer than the model.

    Raises:
        UsageError: when there are more positions than `max_length`.
    """
    if num_states > max_length * span:
        raise UsageError(
            f"the input has {num_states // span} positions, but the model's max_length is "
            f"{max_length}: shorten the input or raise max_length in the space's [model] table"
        )


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast does not lower the precision of matrix products."""
    # Asking the meta device raises; and an export without autocast should see no context at all.
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


LOW_PRECISION = (torch.bfloat16, torch.float16)


def in_full_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in at least fp32: long sums lose too much in bf16.

    Those that are raised lie in one piece of memory afterwards.
    """
    low, order = LOW_PRECISION, torch.contiguous_format
    return tuple(t.to(torch.float32, memory_format=order) if t.dtype in low else t for t in tensors)


def in_product_precision(x: Tensor) -> Tensor:
    """A tensor of fp32 as autocast gives it to matrix products; without autocast as it is.

    Where its precision changes it lies in one piece of memory afterwards.
    """
    kind = x.device.type
    if x.dtype != torch.float32 or kind == "meta" or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind), memory_format=torch.contiguous_format)

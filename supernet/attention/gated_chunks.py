"""Linear attention with gates and the delta rule, in chunks: the family of decay and gated delta.

A state ``S`` of features by values is carried through the sequence:

* without `beta`: ``S_t = diag(α_t) S_(t-1) + k_t v_tᵀ`` (RetNet, GLA, Mamba-2);
* with it: ``S' = α_t S_(t-1)``, ``S_t = S' + β_t k_t (v_t - S'ᵀ k_t)ᵀ`` (the gated delta rule).

The output is ``S_tᵀ q_t`` each time. Within a chunk of L states everything is a product of
matrices; what the delta rule writes there comes out of one unit triangular system for each chunk.
Between chunks a loop of N / L steps carries the state. A single state is a step of the recurrence.

Source: Yang et al., Gated Linear Attention Transformers (2024), section 4; Yang et al.,
Parallelizing Linear Transformers with the Delta Rule (2024), section 3; Yang et al., Gated Delta
Networks (2025), section 3. Gates are logarithms and only differences that are not positive are
raised to a power, so that no product overflows; see `_channel_products` for the one exception.

Shapes: B batch, H heads, N states, C features, V value columns, G gates of a state (1 or C), L
states of a chunk, b batch times heads, n chunks of one of them, c chunks of all.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from supernet.attention.causal_linear import from_chunks, in_chunks, states_before
from supernet.attention.flash_gated import flash_gated_sums, flash_gated_takes
from supernet.attention.in_place import plus_product, times

CHUNK_STATES = 32
"""States of a chunk. Measured on a CPU with heads of 64, 32 and 64 take the same time with gates
alone, and the delta rule, whose system grows with the square, two thirds of it with 32."""
SOLVED_STATES = 16
"""Largest triangular system that is solved as one."""
LOG2_E = math.log2(math.e)
LEAST_POWER = -110.0
"""Least power of two that a decay is: 1e-33."""
LEAST_LOG_GATE = -4.0
"""Least logarithm of a gate per feature. Half a chunk of them is a factor of ``e^64``, which fp32
holds beside features of 1e10."""


def gated_sums(
    q_BHNC: Tensor,
    k_BHNC: Tensor,
    v_BHNV: Tensor,
    log_gate_BHNG: Tensor,
    beta_BHN: Tensor | None,
    past_BHCV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """``S_tᵀ q_t`` of every state, and the last ``S``.

    All tensors are of one floating type, in which all is computed.

    Args:
        q_BHNC: queries.
        k_BHNC: keys, zero at padding. The delta rule is a contraction for keys of length 1 at most.
        v_BHNV: values.
        log_gate_BHNG: ``log α``, at most 0, and 0 at padding. One for a head, or one for each
            feature, which then is at least `LEAST_LOG_GATE`.
        beta_BHN: ``β`` of the delta rule, 0 at padding, which takes one gate for a head; None
            where what is there is not taken out before something is written.
        past_BHCV: the state to go on from; None for zeros.

    Returns:
        ``(B, H, N, V)`` and ``(B, H, C, V)``.
    """
    assert beta_BHN is None or log_gate_BHNG.shape[-1] == 1, "the delta rule has a gate per head"
    states = q_BHNC.shape[2]
    if states == 1 and past_BHCV is not None:
        return gated_step(q_BHNC, k_BHNC, v_BHNV, log_gate_BHNG, beta_BHN, past_BHCV)
    if flash_gated_takes(q_BHNC.device, q_BHNC.dtype, states):
        return flash_gated_sums(q_BHNC, k_BHNC, v_BHNV, log_gate_BHNG, beta_BHN, past_BHCV)
    return _in_chunks(q_BHNC, k_BHNC, v_BHNV, log_gate_BHNG, beta_BHN, past_BHCV)


def gated_step(
    q_BH1C: Tensor,
    k_BH1C: Tensor,
    v_BH1V: Tensor,
    log_gate_BH1G: Tensor,
    beta_BH1: Tensor | None,
    past_BHCV: Tensor,
) -> tuple[Tensor, Tensor]:
    """One step of the recurrence: `gated_sums` of a single state behind others."""
    state_BHCV = past_BHCV * log_gate_BH1G.exp().mT
    if beta_BH1 is not None:
        v_BH1V = (v_BH1V - k_BH1C @ state_BHCV) * beta_BH1[..., None]
    state_BHCV = torch.addcmul(state_BHCV, k_BH1C.mT, v_BH1V)
    return q_BH1C @ state_BHCV, state_BHCV


def _in_chunks(
    q_BHNC: Tensor,
    k_BHNC: Tensor,
    v_BHNV: Tensor,
    log_gate_BHNG: Tensor,
    beta_BHN: Tensor | None,
    past_BHCV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, heads, states, features = q_BHNC.shape
    columns, gates = v_BHNV.shape[-1], log_gate_BHNG.shape[-1]
    length, rows = min(CHUNK_STATES, states), batch * heads
    q, k, v, log_gate = (in_chunks(x, length) for x in (q_BHNC, k_BHNC, v_BHNV, log_gate_BHNG))
    # From the chunk's start to state i, that state's own gate included: at most 0 and falling. To
    # the base 2, for torch's `exp2` takes a third of the time of `exp` on a CPU.
    fallen_cLG = _cumulated(log_gate * LOG2_E)
    total_c1G = fallen_cLG[:, -1:]
    fell_cLG = fallen_cLG.exp2()
    to_end_cLG = (total_c1G - fallen_cLG).exp2()
    keep_bnG1 = fell_cLG[:, -1, :, None].unflatten(0, (rows, -1))
    if past_BHCV is None:
        past_bCV = q.new_zeros(rows, features, columns)
    else:
        past_bCV = past_BHCV.flatten(0, 1)
    if beta_BHN is None:
        if gates == 1:
            weights_cLL = (q @ k.mT) * _decays(fallen_cLG)
        else:
            weights_cLL = _channel_products(q, k, fallen_cLG)
        own_bnCV = ((k * to_end_cLG).mT @ v).unflatten(0, (rows, -1))
        # Unbound at once: the gradient of an index would be as large as all chunks, for each.
        own, keep = own_bnCV.unbind(1), keep_bnG1.unbind(1)
        before_cCV, state_bCV = states_before(
            own_bnCV,
            past_bCV,
            lambda state_bCV, n, out: torch.addcmul(own[n], state_bCV, keep[n], out=out),
        )
        out_cLV = (q * fell_cLG) @ before_cCV
    else:
        beta_cL1 = in_chunks(beta_BHN[..., None], length)
        decays_cLL = _decays(fallen_cLG)
        weights_cLL = times(q @ k.mT, decays_cLL)
        seen_cLL = times(k @ k.mT, times(decays_cLL, beta_cL1))
        # What is written if each key first takes out what the chunk's earlier ones wrote there.
        mixed_cLL = times(_unit_inverse(seen_cLL), beta_cL1.mT)
        own_bnLV, taken_bnLC, keys_bnLC = (
            part.unflatten(0, (rows, -1))
            for part in (mixed_cLL @ v, times(mixed_cLL, fell_cLG.mT) @ k, k * to_end_cLG)
        )
        q_bnLC = q.unflatten(0, (rows, -1))
        v, read_cLV, state_bCV = _corrected(
            q_bnLC, own_bnLV, taken_bnLC, keys_bnLC, keep_bnG1, past_bCV
        )
        out_cLV = times(read_cLV, fell_cLG)
    out_BHNV = from_chunks(plus_product(out_cLV, weights_cLL, v), batch, heads, states)
    return out_BHNV, state_bCV.unflatten(0, (batch, heads))


def _corrected(
    q_bnLC: Tensor,
    own_bnLV: Tensor,
    taken_bnLC: Tensor,
    keys_bnLC: Tensor,
    keep_bn11: Tensor,
    past_bCV: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the delta rule writes and what is read of states before chunks, and the last state.

    Args:
        q_bnLC: queries.
        own_bnLV: what is written where the state before the chunk is zero; see `times`.
        taken_bnLC: what of that state is taken out.
        keys_bnLC: keys, decayed to the chunk's end.
        keep_bn11: gate of a whole chunk.
        past_bCV: the state before the first chunk.

    Returns:
        ``(c, L, V)`` twice, and ``(b, C, V)``.
    """
    parts = [x.unbind(1) for x in (own_bnLV, taken_bnLC, keys_bnLC.mT, keep_bn11)]
    if torch.is_grad_enabled():
        state_bCV, written, before = past_bCV, [], []
        for own_bLV, taken_bLC, keys_bCL, keep_b11 in zip(*parts, strict=True):
            before.append(state_bCV)
            written.append(plus_product(own_bLV, taken_bLC, state_bCV, -1))
            state_bCV = plus_product(state_bCV * keep_b11, keys_bCL, written[-1])
        written_cLV, before_cCV = (torch.stack(x, dim=1).flatten(0, 1) for x in (written, before))
        return written_cLV, q_bnLC.flatten(0, 1) @ before_cCV, state_bCV
    # The same where it stands, and without a copy of each state to be read later. What products are
    # written to is in one piece of memory, for torch would take one head after the other otherwise.
    read_nbLV = torch.empty_like(own_bnLV.transpose(0, 1), memory_format=torch.contiguous_format)
    state_bCV, next_bCV = past_bCV.clone(), torch.empty_like(past_bCV)
    held_bLV = torch.empty_like(read_nbLV[0])
    for q_bLC, read_bLV, own_bLV, taken_bLC, keys_bCL, keep_b11 in zip(
        q_bnLC.unbind(1), read_nbLV, *parts, strict=True
    ):
        torch.bmm(q_bLC, state_bCV, out=read_bLV)
        own_bLV.sub_(torch.bmm(taken_bLC, state_bCV, out=held_bLV))
        torch.mul(state_bCV, keep_b11, out=next_bCV)
        plus_product(next_bCV, keys_bCL, own_bLV)
        state_bCV, next_bCV = next_bCV, state_bCV
    return own_bnLV.flatten(0, 1), read_nbLV.transpose(0, 1).flatten(0, 1), state_bCV


def _unit_inverse(lower_cLL: Tensor) -> Tensor:
    """Inverse of the identity plus what stands below the diagonal; nothing else is read.

    Solving for the identity and one product after it take half the time of solving for wide right
    sides, which torch copies into another order first. Two systems of half the size and two
    products between them take three quarters of the time of one.
    """
    length = lower_cLL.shape[-1]
    if length > SOLVED_STATES and length % 2 == 0:
        half = length // 2
        diagonal = lower_cLL[:, :half, :half], lower_cLL[:, half:, half:]
        first, second = _unit_inverse(torch.cat(diagonal)).chunk(2)
        inverse_cLL = torch.zeros_like(lower_cLL)
        inverse_cLL[:, :half, :half], inverse_cLL[:, half:, half:] = first, second
        inverse_cLL[:, half:, :half] = -second @ (lower_cLL[:, half:, :half] @ first)
        return inverse_cLL
    identity_LL = torch.eye(length, dtype=lower_cLL.dtype, device=lower_cLL.device)
    solved: Tensor = torch.linalg.solve_triangular(
        lower_cLL, identity_LL.expand_as(lower_cLL), upper=False, unitriangular=True
    )
    return solved


def _decays(fallen_cL1: Tensor) -> Tensor:
    """Decay from state j to i, ``(c, L, L)``, zero for later j.

    Powers of two below `LEAST_POWER` are as good as that one, and take five times as long.
    """
    apart_cLL = fallen_cL1 - fallen_cL1.mT
    # Kept from rising before the power is taken, which would overflow there, and its gradient too.
    if torch.is_grad_enabled():
        return apart_cLL.clamp(min=LEAST_POWER, max=0.0).exp2().tril()
    return apart_cLL.clamp_(min=LEAST_POWER, max=0.0).exp2_().tril_()


def _channel_products(q_cLC: Tensor, k_cLC: Tensor, fallen_cLC: Tensor) -> Tensor:
    """The same with a gate per feature, which has to be taken into the features.

    Queries are decayed from the middle of the chunk and keys to it, backwards where they lie on the
    other side; `LEAST_LOG_GATE` and the short chunk keep that within fp32.
    """
    middle_cLC = fallen_cLC - fallen_cLC[:, fallen_cLC.shape[1] // 2, None]
    return ((q_cLC * middle_cLC.exp2()) @ (k_cLC * (-middle_cLC).exp2()).mT).tril()


def _cumulated(x_cLG: Tensor) -> Tensor:
    """The sums along L; in a fixed order where that is asked for and a card has none."""
    if not _adds_in_any_order(x_cLG):
        return x_cLG.cumsum(dim=1)
    reach = 1
    while reach < x_cLG.shape[1]:  # each position has the sum of so many up to it
        x_cLG = x_cLG + F.pad(x_cLG[:, :-reach], (0, 0, reach, 0))
        reach *= 2
    return x_cLG


def _adds_in_any_order(x: Tensor) -> bool:
    return x.device.type != "cpu" and torch.are_deterministic_algorithms_enabled()

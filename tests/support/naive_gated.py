"""The obvious slow twins of the gated kernels: one state after the other, over the real ones only.

As in `naive_attention` padding is left out, not masked. A twin takes the kernel's parameters by
name and the layer's input besides queries, keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]
# (batch, head, numbers of the real states in the order of time) -> their outputs, each (D,)
OneHead = Callable[[int, int, list[int]], list[Tensor]]


def decay(
    q: Tensor, k: Tensor, v: Tensor, x: Tensor, mask: Tensor | None, own: Parameters, both: bool
) -> Tensor:
    """``S = diag(α) S + k vᵀ``, a gate for each head or for each feature."""
    head_dim = q.shape[-1]

    def gates(b: int, h: int, i: int) -> Tensor:
        width = x.shape[-1]
        if "weight_GE" in own:
            logits = own["weight_GE"][h, :width] @ x[b, i] + own["bias_G"][h]
            logits = logits.expand(head_dim)
        else:
            rows = slice(h * head_dim, (h + 1) * head_dim)
            low = own["gate_down_RE"][:, :width] @ x[b, i]
            logits = own["gate_up_GR"][rows] @ low + own["bias_G"][rows]
        # σ(z)^(1/16) by its logarithm, which does not underflow.
        return (-torch.logaddexp(-logits, torch.zeros_like(logits)) / 16).clamp(min=-4).exp()

    def run(b: int, h: int, order: list[int]) -> list[Tensor]:
        state, outputs = torch.zeros(head_dim, head_dim, dtype=q.dtype), []
        for i in order:
            state = gates(b, h, i)[:, None] * state + torch.outer(k[b, h, i], v[b, h, i])
            outputs.append(state.T @ q[b, h, i] / math.sqrt(head_dim))
        return outputs

    gain = own["gain_W"][: q.shape[1] * head_dim].view(-1, 1, head_dim)
    return _normed(_every_head(q, mask, run, both), gain)


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, x: Tensor, mask: Tensor | None, own: Parameters, both: bool
) -> Tensor:
    """``S' = α S``, ``S = S' + β k (v - S'ᵀ k)ᵀ`` after convolutions, with an output gate."""
    heads, head_dim, width = q.shape[1], q.shape[-1], x.shape[-1]

    def convolved(which: int, y: Tensor, b: int, h: int, seen: list[int]) -> Tensor:
        taps = own["taps_3WT"][which, h * head_dim : (h + 1) * head_dim]
        total = sum(taps[:, 3 - back] * y[b, h, i] for back, i in enumerate(seen[:-5:-1]))
        assert isinstance(total, Tensor)
        return total * total.sigmoid()

    def unit(y: Tensor) -> Tensor:
        return y / (y @ y + 1e-6).sqrt()

    def run(b: int, h: int, order: list[int]) -> list[Tensor]:
        state, outputs = torch.zeros(head_dim, head_dim, dtype=q.dtype), []
        for t, i in enumerate(order):
            seen = order[: t + 1]
            query, key = (unit(convolved(n, y, b, h, seen)) for n, y in enumerate((q, k)))
            value = convolved(2, v, b, h, seen)
            step = own["gates_2HE"][0, h, :width] @ x[b, i] + own["step_bias_H"][h]
            step = torch.nn.functional.softplus(step)
            beta = (own["gates_2HE"][1, h, :width] @ x[b, i]).sigmoid()
            state = (-own["log_rate_H"][h].exp() * step).exp() * state
            state = state + beta * torch.outer(key, value - state.T @ key)
            outputs.append(state.T @ query / math.sqrt(head_dim))
        return outputs

    out = _normed(_every_head(q, mask, run, both), own["gain_D"][:head_dim])
    gate = x @ own["output_WE"][: heads * head_dim, :width].T
    return out * (gate * gate.sigmoid()).unflatten(-1, (heads, head_dim)).transpose(1, 2)


def _every_head(q: Tensor, mask: Tensor | None, run: OneHead, both: bool) -> Tensor:
    batch, heads, states, _ = q.shape
    rows = {place: torch.zeros_like(q[0, 0, 0]) for place in product(*map(range, q.shape[:3]))}
    for b, h in product(range(batch), range(heads)):
        real = list(range(states)) if mask is None else mask[b].nonzero().flatten().tolist()
        for order in (real, real[::-1]) if both else (real,):
            for i, out in zip(order, run(b, h, order), strict=True):
                rows[b, h, i] = rows[b, h, i] + out
    return torch.stack(list(rows.values())).view(q.shape)


def _normed(out: Tensor, gain: Tensor) -> Tensor:
    return out / (out.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * gain

"""Linear attention with gates: a state that fades, and one that is corrected (the delta rule)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.attention import (
    KERNELS,
    Attention,
    Carried,
    Settings,
    Sizes,
    in_full,
)


def faded(q: Tensor, k: Tensor, fallen: Tensor) -> Tensor:
    """Products of a chunk's queries with keys that are not later, faded from the one to the other.

    Gates of features are taken into these, from the chunk's middle on, so that they stay in range.
    """
    if fallen.shape[-1] == 1:
        apart = fallen - fallen.mT
        later = torch.ones_like(apart[0, 0], dtype=torch.bool).triu(1)
        return q @ k.mT * apart.masked_fill(later, -torch.inf).exp()
    apart = fallen - fallen[:, :, fallen.shape[2] // 2, None]
    return ((q * apart.exp()) @ (k * (-apart).exp()).mT).tril()


def gated_sums(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """``S^T q`` after each position, and the last S, in chunks of 32 positions.

    At each position S fades by its gate; without `beta` then ``k v^T`` is added. With it, what S
    holds under k is corrected towards v: ``S + beta k (v - S^T k)^T``. Queries, keys and values are
    ``(B, H, N, W)``, gates ``(B, H, N, 1)``, or without `beta` ``(B, H, N, W)``, and S
    ``(B, H, W, W)``.
    """
    parts, betas = [], [None] * (-(-q.shape[2] // 32)) if beta is None else beta.split(32, 2)
    chunks = (part.split(32, 2) for part in (q, k, v, log_gate))
    for qs, ks, vs, gates, bs in zip(*chunks, betas, strict=True):
        fallen = gates.cumsum(dim=2)  # from the chunk's start to each position
        if bs is not None:
            # What is written: each key takes out what the state and earlier keys left under it.
            seen = bs * faded(ks, ks, fallen)
            wanted = bs * (vs - (ks * fallen.exp()) @ state)
            vs = torch.linalg.solve_triangular(seen, wanted, upper=False, unitriangular=True)
        parts.append(faded(qs, ks, fallen) @ vs + (qs * fallen.exp()) @ state)
        total = fallen[:, :, -1:]
        state = state * total.exp().mT + (ks * (total - fallen).exp()).mT @ vs
    return torch.cat(parts, dim=2), state


class GatedAttention(Attention):
    """What the two have in common; an encoder reads in both directions and adds the outcomes."""

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Of an input ``(B, N, D)``: log of the decay, and beta, as `gated_sums` takes them."""
        raise NotImplementedError

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, Tensor | None], past: Carried
    ) -> tuple[Tensor, Carried]:
        """Outputs ``(B, H, N, W)`` before the norm, and what is carried on."""
        raise NotImplementedError

    def finished(self, sums: Tensor, x: Tensor) -> Tensor:
        """The heads' outputs with their norm."""
        raise NotImplementedError

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``(B, N, D)`` -> ``(B, N, D)``, all positions seeing all; `real` is False at padding."""
        parts = [*self.project(x), *self.gates(in_full(x))]
        if real is not None:
            # Nothing is written at padding, and nothing fades.
            hidden = ~real[:, None, :, None]
            parts = [None if one is None else one.masked_fill(hidden, 0.0) for one in parts]
        back = [None if one is None else one.flip(2) for one in parts]
        sums = [self.run(q, k, v, tuple(gates), ())[0] for q, k, v, *gates in (parts, back)]
        return self.merge(self.finished(sums[0] + sums[1].flip(2), x))

    def causal(self, x: Tensor, past: Carried | None, positions: Tensor) -> tuple[Tensor, Carried]:
        """``(B, N, D)`` -> ``(B, N, D)``, seeing the past, of which one state is carried."""
        q, k, v = self.project(x, positions)
        sums, after = self.run(q, k, v, self.gates(in_full(x)), past or ())
        return self.merge(self.finished(sums, x)), after

    def normed(self, sums: Tensor, gain: Tensor) -> Tensor:
        """Each head by itself, divided by its root mean square."""
        return F.rms_norm(sums, (self.head_width,), eps=1e-6) * gain

    def zeros(self, q: Tensor) -> Tensor:
        """The state before the first position."""
        return q.new_zeros(*q.shape[:2], self.head_width, self.head_width)


class DecayAttention(GatedAttention):
    """Linear attention whose past fades, by a gate for each head (GLA, 2024; Mamba-2, 2024)."""

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        self.gain = nn.Parameter(torch.ones(self.heads * self.head_width))
        self.add_gates(sizes.width)

    def add_gates(self, width: int) -> None:
        """Weights and biases that make gates of an input of this width."""
        self.gate_weight = nn.Parameter(torch.zeros(self.heads, width))
        self.gate_bias = nn.Parameter(torch.zeros(self.heads))

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The sixteenth root of a sigmoid, at least ``exp(-4)``."""
        logits = self.gate_logits(x) + self.gate_bias.to(x.dtype)
        gates = (F.logsigmoid(logits) / 16).clamp(min=-4.0)
        return gates.unflatten(-1, (self.heads, -1)).transpose(1, 2), None

    def gate_logits(self, x: Tensor) -> Tensor:
        """Of an input ``(B, N, D)``, without the bias: one for each head."""
        return F.linear(x, self.gate_weight.to(x.dtype))

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, Tensor | None], past: Carried
    ) -> tuple[Tensor, Carried]:
        """Outputs ``(B, H, N, W)`` before the norm, and the state."""
        q, k, v = in_full(q) * self.head_width**-0.5, in_full(k), in_full(v)
        sums, state = gated_sums(q, k, v, *gates, past[0] if past else self.zeros(q))
        return sums, (state,)

    def finished(self, sums: Tensor, x: Tensor) -> Tensor:
        """Each head's output divided by its root mean square."""
        gain = self.gain.view(self.heads, 1, self.head_width)
        return self.normed(sums, gain).to(x.dtype)


class ChannelDecayAttention(DecayAttention):
    """The same with a gate for each feature of the keys, by weights of low rank (GLA, 2024)."""

    def add_gates(self, width: int) -> None:
        """Weights and biases that make gates of an input of this width."""
        inner = self.heads * self.head_width
        self.gate_down = nn.Parameter(torch.zeros(16, width))
        self.gate_up = nn.Parameter(torch.zeros(inner, 16))
        self.gate_bias = nn.Parameter(torch.zeros(inner))

    def gate_logits(self, x: Tensor) -> Tensor:
        """Of an input ``(B, N, D)``, without the bias: one for each feature of a head."""
        return F.linear(F.linear(x, self.gate_down.to(x.dtype)), self.gate_up.to(x.dtype))


class GatedDeltaAttention(GatedAttention):
    """The gated delta rule behind a short convolution (Gated DeltaNet, 2025)."""

    def __init__(self, model: Settings, sizes: Sizes) -> None:
        super().__init__(model, sizes)
        inner = self.heads * self.head_width
        self.gain = nn.Parameter(torch.ones(self.head_width))
        self.taps = nn.Parameter(torch.zeros(3, inner, 4))  # of queries, keys and values
        self.gate_weights = nn.Parameter(torch.zeros(2, self.heads, sizes.width))
        self.log_rate = nn.Parameter(torch.zeros(self.heads))
        self.step_bias = nn.Parameter(torch.zeros(self.heads))
        self.output_gate = nn.Parameter(torch.zeros(inner, sizes.width))

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The decay falls with the size of a step; beta is a sigmoid."""
        step, write = (F.linear(x, weight.to(x.dtype)) for weight in self.gate_weights)
        fall = -in_full(self.log_rate).exp() * F.softplus(step + self.step_bias)
        return fall.transpose(1, 2)[..., None], write.sigmoid().transpose(1, 2)[..., None]

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, Tensor | None], past: Carried
    ) -> tuple[Tensor, Carried]:
        """Outputs ``(B, H, N, W)`` before the norm, the state, and the convolution's inputs."""
        new = torch.cat((q, k, v), dim=1)
        before = past[1] if past else new.new_zeros(*new.shape[:2], 3, self.head_width)
        inputs = torch.cat((before, new), dim=2)
        taps = self.taps.reshape(3 * self.heads, 1, self.head_width, 4)
        length = new.shape[2]
        shifted = [in_full(inputs[:, :, i : i + length]) * taps[..., i] for i in range(4)]
        q, k, v = F.silu(sum(shifted)).chunk(3, dim=1)
        # Queries and keys of length 1.
        q, k = (x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        state = past[0] if past else self.zeros(q)
        sums, state = gated_sums(q * self.head_width**-0.5, k, v, *gates, state)
        # A copy, for a part would keep the whole prompt.
        return sums, (state, inputs[:, :, length:].clone())

    def finished(self, sums: Tensor, x: Tensor) -> Tensor:
        """Each head's output divided by its root mean square, times the output gate."""
        gate = self.split(F.silu(F.linear(in_full(x), in_full(self.output_gate))))
        return (self.normed(sums, self.gain) * gate).to(x.dtype)


KERNELS |= {
    "decay": DecayAttention,
    "decay_channel": ChannelDecayAttention,
    "gated_delta": GatedDeltaAttention,
}

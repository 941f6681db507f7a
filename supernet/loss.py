"""Cross-entropy with label smoothing, in one pass forward and one back.

Shapes: P predictions, C outcomes (classes, or tokens of the vocabulary).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from supernet.attention.base import in_full_precision

IGNORED = -100
"""The label of a place where nothing is to be predicted, such as padding."""
DIVERGENCE_NUMBERS = 1 << 23
"""Logits that are compared at once."""


def summed_divergence(teacher_PC: Tensor, logits_PC: Tensor, labels_P: Tensor) -> Tensor:
    """Kullback-Leibler divergence of a network from its teacher, in nats, over all predictions.

    For each prediction the sum over outcomes of p (log p − log q), where p are the teacher's
    probabilities and q the network's; 0 where they say the same.

    Args:
        teacher_PC: the teacher's logits, on any device.
        logits_PC: the network's.
        labels_P: `IGNORED` where nothing is predicted, which is left out.

    Returns:
        A float64 on the network's device.
    """
    real_R = (labels_P != IGNORED).nonzero().squeeze(1)
    total = torch.zeros((), dtype=torch.float64, device=logits_PC.device)
    rows = max(1, DIVERGENCE_NUMBERS // logits_PC.shape[1])
    for some_R in real_R.split(rows):
        told_RC = teacher_PC[some_R.to(teacher_PC.device)].to(logits_PC.device)
        log_p_RC = told_RC.float().log_softmax(dim=-1)
        log_q_RC = logits_PC[some_R].float().log_softmax(dim=-1)
        apart_R = (log_p_RC.exp() * (log_p_RC - log_q_RC)).sum(dim=-1)
        # Below 0 by rounding only; a number that is none stays one.
        total += apart_R.clamp(min=0.0).double().sum()
    return total


def smoothed_cross_entropy(logits_PC: Tensor, labels_P: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy over the labels that are there, in nats; 0 where there are none.

    The same as torch's own, for the usual reduction; written out because most of a small
    translation network's time goes here: torch's keeps several copies of ``(P, C)`` numbers and
    takes three times as long on a CPU.

    Args:
        logits_PC: unnormalised scores; those of less than fp32 are raised to it.
        labels_P: outcome numbers, or `IGNORED`.
        smoothing: share of each label that is spread over all outcomes, 0 to 1.

    Source: Szegedy et al., "Rethinking the Inception Architecture" (2016), section 7.
    """
    (scores_PC,) = in_full_precision(logits_PC)
    loss: Tensor = _SmoothedCrossEntropy.apply(scores_PC, labels_P, smoothing)  # type: ignore[no-untyped-call]
    return loss


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Keeps the log-probabilities alone; the gradient is made from them in one array."""

    @staticmethod
    def forward(ctx: Any, logits_PC: Tensor, labels_P: Tensor, smoothing: float) -> Tensor:
        scores_PC = logits_PC.log_softmax(dim=-1)
        real_P = labels_P != IGNORED
        weights_P = real_P.to(scores_PC.dtype) / real_P.sum().clamp(min=1)
        # What is ignored, below 0, picks an outcome as well, with no weight.
        labels_P1 = labels_P.clamp(min=0)[:, None]
        picked_P = scores_PC.gather(1, labels_P1).squeeze(1)
        losses_P = (smoothing - 1.0) * picked_P - smoothing * scores_PC.mean(dim=1)
        ctx.save_for_backward(scores_PC, labels_P1, weights_P)
        ctx.smoothing = smoothing
        return (losses_P * weights_P).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        scores_PC, labels_P1, weights_P = ctx.saved_tensors
        grad_PC = scores_PC.exp().sub_(ctx.smoothing / scores_PC.shape[1])
        sure_P1 = grad_PC.new_full(labels_P1.shape, ctx.smoothing - 1.0)
        grad_PC.scatter_add_(1, labels_P1, sure_P1)
        return grad_PC.mul_((weights_P * grad)[:, None]), None, None

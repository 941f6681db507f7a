"""What the decoder study measures of trained networks: attention's dilution, time per token.

Shapes: B batch, H heads, N queries, M keys, D width of one head.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings
from supernet.attention.base import State, state_positions
from supernet.attention.linear import MeanLinearKernel
from supernet.attention.softmax import SoftmaxKernel, unpacked
from supernet.data.text_batches import PairBatch
from supernet.data.tokenizer import BOS
from supernet.decoding_state import DecodingState
from supernet.extraction import StandAlone
from supernet.sequence_models import TranslationModel


@torch.inference_mode()
def attended_share(network: StandAlone, batches: Iterable[PairBatch]) -> float:
    """Mean over layers, heads and target tokens of ``exp(entropy of the weights) / source length``.

    1 is a plain mean over the source, and 1 / length a look at one token.

    Args:
        network: with softmax or cosFormer cross-attention.
        batches: what it reads.
    """
    shares: list[Tensor] = []
    of_tokens: list[Tensor] = []
    with _watched(shares):
        network.eval()
        for batch in batches:
            network(batch.source, batch.inputs)
            of_tokens += [one.mT[batch.target_mask].flatten() for one in shares]
            shares.clear()
    return float(torch.cat(of_tokens).mean())


def share_of(weights_BHNM: Tensor, mask_BM: Tensor) -> Tensor:
    """``exp(entropy) / length`` of every row of weights, ``(B, H, N)``."""
    entropy_BHN = torch.special.entr(weights_BHNM).sum(dim=-1)
    shares_BHN: Tensor = entropy_BHN.exp() / mask_BM.sum(dim=1)[:, None, None]
    return shares_BHN


@contextmanager
def _watched(shares: list[Tensor]) -> Iterator[None]:
    """Note the weights of every cross-attention, which no kernel keeps by itself."""
    keys: dict[int, tuple[Tensor, Tensor]] = {}
    softmax_read, linear_read = SoftmaxKernel.read, MeanLinearKernel.read
    linear_memory = MeanLinearKernel.memory

    def read_softmax(self: SoftmaxKernel, q: Tensor, memory: State, places: Tensor) -> Tensor:
        k_BHMD, _, mask = unpacked(memory)
        mask_BM = _mask(mask, k_BHMD)
        logits = (q @ k_BHMD.mT / math.sqrt(q.shape[-1])).masked_fill(
            ~mask_BM[:, None, None], -torch.inf
        )
        shares.append(share_of(logits.softmax(dim=-1), mask_BM))
        return softmax_read(self, q, memory, places)

    def remember(self: MeanLinearKernel, k: Tensor, v: Tensor, **options: Any) -> State:
        mask_BM = _mask(options["key_mask_BM"], k)
        places = state_positions(mask_BM, k.shape[2], 1, k.device)
        keys[id(self)] = self.features(k, places) * mask_BM[:, None, :, None], mask_BM
        return linear_memory(self, k, v, **options)

    def read_linear(self: MeanLinearKernel, q: Tensor, memory: State, places: Tensor) -> Tensor:
        k_BHMC, mask_BM = keys[id(self)]
        weights = self.features(q, places) @ k_BHMC.mT
        shares.append(share_of(weights / weights.sum(dim=-1, keepdim=True), mask_BM))
        return linear_read(self, q, memory, places)

    with ExitStack() as stack:
        stack.enter_context(patch.object(SoftmaxKernel, "read", read_softmax))
        stack.enter_context(patch.object(MeanLinearKernel, "memory", remember))
        stack.enter_context(patch.object(MeanLinearKernel, "read", read_linear))
        yield


def _mask(mask_BM: Tensor | None, k_BHMD: Tensor) -> Tensor:
    if mask_BM is not None:
        return mask_BM
    return torch.ones(k_BHMD.shape[0], k_BHMD.shape[2], dtype=torch.bool)


# -- milliseconds per generated token -----------------------------------------------------------

LENGTHS = (16, 64, 256, 1024)
WINDOW = 16
SOURCE_LENGTH = 16
ROUNDS = 5

Network = tuple[ModelSettings, Architecture]


@torch.inference_mode()
def time_per_token(networks: Sequence[Network]) -> list[list[float]]:
    """Median milliseconds per token of each network at each of `LENGTHS`, batch 1, greedy.

    The last `WINDOW` tokens before each length are timed, in interleaved rounds. A network's
    weights are random: they decide nothing of the time.

    Args:
        networks: settings, which must allow the longest of `LENGTHS`, and architecture.
    """
    models = [StandAlone(TranslationModel, *network).eval() for network in networks]
    states = [[_prefix(model, length - WINDOW) for length in LENGTHS] for model in models]
    samples = np.zeros((ROUNDS, len(models), len(LENGTHS)))
    for number in range(-1, ROUNDS):  # the first round warms up
        for i, model in enumerate(models):
            for j, state in enumerate(states[i]):
                samples[number, i, j] = _window_ms(model, state)
    medians: list[list[float]] = np.median(samples, axis=0).tolist()
    return medians


def _prefix(model: StandAlone, length: int) -> DecodingState:
    """The state after `length` tokens."""
    state = model.start(torch.full((1, SOURCE_LENGTH), BOS))
    if length == 0:
        return state
    return model.step(torch.full((1, length), BOS), state)[1]


def _window_ms(model: StandAlone, state: DecodingState) -> float:
    token = torch.full((1, 1), BOS)
    started = time.perf_counter()
    for _ in range(WINDOW):
        logits, state = model.step(token, state)
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
    return 1000 * (time.perf_counter() - started) / WINDOW

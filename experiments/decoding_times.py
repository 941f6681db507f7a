"""Milliseconds per generated token, by position."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings
from supernet.data.tokenizer import BOS
from supernet.decoding_state import DecodingState
from supernet.sequence_models import FixedTranslation

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
    models = [FixedTranslation(*network).eval() for network in networks]
    states = [[_prefix(model, length - WINDOW) for length in LENGTHS] for model in models]
    samples = np.zeros((ROUNDS, len(models), len(LENGTHS)))
    for number in range(-1, ROUNDS):  # the first round warms up
        for i, model in enumerate(models):
            for j, state in enumerate(states[i]):
                samples[number, i, j] = _window_ms(model, state)
    medians: list[list[float]] = np.median(samples, axis=0).tolist()
    return medians


def _prefix(model: FixedTranslation, length: int) -> DecodingState:
    """The state after `length` tokens."""
    state = model.start(torch.full((1, SOURCE_LENGTH), BOS))
    if length == 0:
        return state
    return model.step(torch.full((1, length), BOS), state)[1]


def _window_ms(model: FixedTranslation, state: DecodingState) -> float:
    token = torch.full((1, 1), BOS)
    started = time.perf_counter()
    for _ in range(WINDOW):
        logits, state = model.step(token, state)
        token = logits[:, -1].argmax(dim=-1, keepdim=True)
    return 1000 * (time.perf_counter() - started) / WINDOW

"""A tiny checkpoint that searches begin with, and how little they do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.pretrained_cases import write_model
from tests.support.tokenizer_cases import byte_level, write_checkpoint

NUMBERS = {
    "distil.updates": 3,
    "supernet.epochs": 1,
    "supernet.epoch_updates": 2,
    "supernet.segment_length": 16,
    "supernet.max_tokens": 64,
    "observations": 12,
    "rounds.first": 8,
    "rounds.batch": 4,
    "evolution.population": 16,
    "evolution.generations": 2,
    "verified": 4,
    "retrain.epochs": 2,
    "retrain.epoch_updates": 3,
    "retrain.segment_length": 16,
    "retrain.max_tokens": 64,
}


def write_llama(hub: Any, folder: Path) -> Path:
    """The folder of a tiny llama with a tokenizer."""
    write_model(hub, folder, "llama", vocab_size=280)
    return write_checkpoint(folder, byte_level(marked=True))

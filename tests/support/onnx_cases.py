"""Networks as ONNX files, and what torch says to the same inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings
from search_spaces.tasks import TaskName
from supernet.blueprint import Blueprint
from supernet.export.onnx import write_graphs
from supernet.export.onnx_driver import Array, Decoder, State, session
from supernet.extraction import StandAlone, Supernet, extract

# Batch, beams, source and target: single ones, more than was traced, all positions there are.
SIZES = [(1, 1, 1, 1), (1, 1, 5, 4), (2, 3, 14, 13), (4, 1, 9, 1), (1, 5, 18, 18), (3, 2, 16, 17)]


def network_of(model: Supernet, architecture: Architecture) -> StandAlone:
    """A network of a random supernet, tame enough for single precision."""
    network = extract(model, architecture).float().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(0.6)
    return network  # type: ignore[no-any-return]


def write(network: StandAlone, settings: ModelSettings, task: TaskName, folder: Path) -> Path:
    """The graphs of a network as files."""
    write_graphs(network, Blueprint(task, settings, network.architecture), folder)
    return folder


def sources(batch: int, length: int, vocab: int) -> Tensor:
    """Sources padded behind, in front, and not at all."""
    drawn = torch.randint(1, vocab, (batch, length), generator=torch.Generator().manual_seed(batch))
    for row in range(1, batch):
        hidden = slice(length - length // 3, None) if row % 2 else slice(0, length // 2)
        drawn[row, hidden] = 0
    return drawn


def texts(rows: int, length: int, vocab: int) -> Tensor:
    """Texts without padding."""
    rng = torch.Generator().manual_seed(length)
    return torch.randint(1, vocab, (rows, length), generator=rng)


def in_parts(decoder: Decoder, state: State, tokens: Array, cuts: list[int]) -> Array:
    """Logits of tokens that are read so many at a time."""
    found, start = [], 0
    for cut in cuts:
        logits, state = decoder.step(tokens[..., start : start + cut], state)
        found.append(logits)
        start += cut
    return np.concatenate(found, axis=-2)


def cuts_of(length: int) -> list[list[int]]:
    """All at once, one by one, and in two parts."""
    halves = [length // 2, length - length // 2]
    return [[length], [1] * length, halves if length > 1 else [1]]


@torch.inference_mode()
def apart_translating(network: StandAlone, folder: Path, vocab: int) -> float:
    """The largest difference of a logit from torch, over all of `SIZES`."""
    decoder, worst = Decoder(folder, 1), 0.0
    for batch, beams, source_length, length in SIZES:
        source, target = sources(batch, source_length, vocab), texts(batch * beams, length, vocab)
        expected = network.step(target, network.start(source))[0].numpy()
        for cuts in cuts_of(length):
            tokens = target.numpy().reshape(batch, beams, length)
            found = in_parts(decoder, decoder.start(source.numpy(), beams), tokens, cuts)
            worst = max(worst, float(np.abs(found.reshape(expected.shape) - expected).max()))
    return worst


@torch.inference_mode()
def apart_writing(network: StandAlone, folder: Path, vocab: int) -> float:
    """As `apart_translating`, of a language model."""
    decoder, worst = Decoder(folder, 1), 0.0
    for batch, _, _, length in SIZES:
        tokens = texts(batch, length, vocab)
        expected = network(tokens).numpy()
        for cuts in cuts_of(length):
            found = in_parts(decoder, decoder.start(tokens.numpy()), tokens.numpy(), cuts)
            worst = max(worst, float(np.abs(found - expected).max()))
    return worst


@torch.inference_mode()
def apart_classifying(network: StandAlone, folder: Path, batches: list[Tensor]) -> float:
    """As `apart_translating`, of a classifier and these inputs."""
    graph, worst = session(folder / "classifier.onnx", 1), 0.0
    for inputs in batches:
        (found,) = graph.run(None, {graph.get_inputs()[0].name: inputs.numpy()})
        worst = max(worst, float(np.abs(found - network(inputs).numpy()).max()))
    return worst

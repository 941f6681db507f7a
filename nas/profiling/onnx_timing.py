"""What is done while onnxruntime is timed: that of `nas.profiling.timed_work`, on exported graphs.

The graphs are those of `nas export --format onnx`, and tokens are chosen by the driver that goes
with them. One of the modules of `nas` that know torch; it needs the extra ``export``.

Shapes: B batch, K beams, M source positions, N target positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from latency.timer import Call
from latency.workload import Workload
from nas.profiling.timed_work import Maker, example_inputs
from search_spaces.architecture import Architecture
from search_spaces.space import SearchSpace
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.data.tokenizer import BOS
from supernet.export.onnx import RUNTIME, write_graphs
from supernet.export.onnx_driver import Array, Decoder, Search, beam_search, session, write_on


def runtime_name() -> str:
    """``onnxruntime 1.31.1``, or whatever version there is."""
    return RUNTIME


@contextmanager
def exported_calls(
    space: SearchSpace, architectures: Sequence[Architecture], workload: Workload, threads: int
) -> Iterator[Maker]:
    """Export networks with random weights; they can be opened as long as the context is.

    Args:
        space: of the networks.
        architectures: what will be timed.
        workload: what they do; see `nas.request.workloads`.
        threads: of onnxruntime, at least 1.

    Yields:
        Opens a network's graphs anew, and returns its call.
    """
    with TemporaryDirectory(prefix="nas-onnx-") as name:
        export_random(space, architectures, Path(name))
        yield lambda one: onnx_call(space, Path(name) / one.id, workload, threads)


def export_random(space: SearchSpace, architectures: Sequence[Architecture], folder: Path) -> None:
    """Write the graphs of networks with random weights, each into a folder named by its id."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for architecture in architectures:
            network = build_network(space.model, space.task, architecture).eval()
            (folder / architecture.id).mkdir()
            blueprint = Blueprint(space.task, space.model, architecture)
            write_graphs(network, blueprint, folder / architecture.id)


def onnx_call(space: SearchSpace, folder: Path, workload: Workload, threads: int) -> Call:
    """An exported network at its work.

    Args:
        space: of the network.
        folder: of its graphs.
        workload: what it does.
        threads: of onnxruntime.
    """
    inputs = example_inputs(space, workload).numpy()
    if space.task == "classification":
        graph = session(folder / "classifier.onnx", threads)
        fed = {graph.get_inputs()[0].name: inputs}
        return lambda: graph.run(None, fed)
    decoder, length = Decoder(folder, threads), workload.target_length or 0
    if space.task == "language_modelling":
        return _language_call(decoder, inputs, workload)
    if workload.mode == "generate":
        search = Search(workload.beam or 1, factor=0.0, offset=length, min_length=length)
        return lambda: beam_search(decoder, inputs, search)
    target_BKN = np.full((workload.batch, 1, length), BOS)
    return lambda: decoder.step(target_BKN, decoder.start(inputs))


def _language_call(decoder: Decoder, inputs_BN: Array, workload: Workload) -> Call:
    """A language model goes on from a full memory, where it has one."""
    before = np.full((len(inputs_BN), decoder.memory_length), BOS)
    state = decoder.remember(before, decoder.start(inputs_BN))
    if workload.mode in ("forward", "prefill"):  # the graphs have no other way to read
        return lambda: decoder.read(inputs_BN, state)
    if workload.mode == "decode":
        filled = decoder.read(inputs_BN, state)[1]
        return lambda: decoder.step(inputs_BN[:, -1:], filled)
    return lambda: write_on(decoder, inputs_BN, state, workload.target_length or 0)

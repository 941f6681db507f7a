"""Exports as ONNX: a graph that classifies, or graphs that read a source and write a text.

Every graph takes any batch and any length. A decoder's step carries what it remembers as inputs
and outputs by name, see `supernet.export.onnx_driver`, which goes along as ``decode.py``.

The graph of the source and the step share no weights but a table of embeddings that source and
target have in common: that one is in both.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as runtime
import torch

from search_spaces.errors import DataError
from search_spaces.settings import ImageInput
from supernet.export import onnx_driver
from supernet.export.base import ExportFormat, ExportSource, Record
from supernet.export.blueprint import Blueprint
from supernet.export.onnx_driver import Array, Decoder, session
from supernet.export.onnx_signatures import graphs_of
from supernet.export.onnx_tracing import write_graph
from supernet.extraction import StandAlone

RUNTIME = f"onnxruntime {onnxruntime.__version__}"
DRIVER_FILE = "decode.py"
FAILURES = (
    runtime.Fail,
    runtime.InvalidArgument,
    runtime.InvalidGraph,
    runtime.InvalidProtobuf,
    runtime.NoModel,
    runtime.NoSuchFile,
    runtime.NotImplemented,
    runtime.RuntimeException,
)


class OnnxExport(ExportFormat):
    """ONNX graphs, and for networks that write text a driver that needs numpy and onnxruntime."""

    name = "onnx"

    def write(self, source: ExportSource, folder: Path) -> list[str]:
        """Write the graphs and the driver; see `ExportFormat.write`."""
        files = write_graphs(source.network, source.blueprint, folder)
        if source.blueprint.task != "classification":
            shutil.copyfile(onnx_driver.__file__, folder / DRIVER_FILE)
            files.append(DRIVER_FILE)
        return files

    def parity(self, folder: Path, blueprint: Blueprint, record: Record) -> float:
        """See `ExportFormat.parity`; texts are read at once, and again token by token."""
        inputs = {name: tensor.numpy() for name, tensor in record.inputs.items()}
        try:
            for name in graph_names(blueprint):
                _check_graph(folder / f"{name}.onnx", blueprint)
            if blueprint.task == "classification":
                found = [_classes(folder, inputs["inputs"])]
            else:
                decoder = Decoder(folder, 1)
                found = [_logits(decoder, inputs, new) for new in (None, 1)]
        except (*FAILURES, KeyError, ValueError) as error:
            raise DataError(
                f"onnxruntime cannot run the graphs of {folder} ({_first_line(error)}); export "
                "the network anew"
            ) from error
        return max(record.difference({"logits": torch.from_numpy(one)}) for one in found)

    def usage(self, blueprint: Blueprint) -> str:
        """See `ExportFormat.usage`."""
        match blueprint.task:
            case "classification":
                image = isinstance(blueprint.settings.input, ImageInput)
                form = "(batch, channels, height, width)" if image else "(batch, length)"
                return CLASSIFIER.format(name="images" if image else "tokens", form=form)
            case "translation":
                return TRANSLATOR
            case "language_modelling":
                return WRITER


CLASSIFIER = """\
`classifier.onnx` takes any batch; padding of tokens is 0. It needs onnxruntime:

```python
import onnxruntime

session = onnxruntime.InferenceSession("classifier.onnx")
(logits,) = session.run(None, {{"{name}": {name}}})  # {form}
```"""
TRANSLATOR = """\
`python decode.py < sentences.txt` translates one sentence a line; it needs numpy, onnxruntime and,
where the vocabulary is a sentencepiece model, sentencepiece. `--beam` and `--lenpen` are those of
`nas translate`, and the translations are the same. `decode.py` is short and shows how the graphs
work together: `source.onnx` reads sentences once, `step.onnx` goes on by one or more tokens."""
WRITER = """\
`python decode.py --tokens 50 < prompts.txt` goes on with each line greedily; it needs numpy,
onnxruntime and, where the vocabulary is a sentencepiece model, sentencepiece. `decode.py` is short
and shows how `step.onnx` carries on what it remembers."""


def write_graphs(network: StandAlone, blueprint: Blueprint, folder: Path) -> list[str]:
    """Write the graphs of a network; the names of their files.

    Args:
        network: in fp32, on the CPU, in evaluation mode.
        blueprint: of it.
        folder: exists.
    """
    about = facts_of(blueprint)
    return [name for graph in graphs_of(network) for name in write_graph(graph, about, folder)]


def graph_names(blueprint: Blueprint) -> tuple[str, ...]:
    """The graphs of a network of that task."""
    match blueprint.task:
        case "classification":
            return ("classifier",)
        case "translation":
            return ("source", "step")
        case "language_modelling":
            return ("step",)


def facts_of(blueprint: Blueprint) -> dict[str, str]:
    """What goes into the metadata of every graph."""
    decoder = blueprint.architecture.decoder
    return {
        "architecture": blueprint.architecture.id,
        "task": blueprint.task,
        "max_length": str(blueprint.settings.max_length),
        "memory_length": str(decoder.memory_length if decoder else 0),
    }


def _check_graph(file: Path, blueprint: Blueprint) -> None:
    """See that a graph is of this network.

    Raises:
        DataError: when it is missing or of another one.
    """
    if not file.is_file():
        raise DataError(f"{file} is missing; export the network anew")
    about = session(file, 1).get_modelmeta().custom_metadata_map
    for name, wanted in facts_of(blueprint).items():
        if about.get(name) != wanted:
            raise DataError(
                f"{file} is of another network: its {name} is {about.get(name)}, not {wanted}"
            )


def _classes(folder: Path, inputs: Array) -> Array:
    graph = session(folder / "classifier.onnx", 1)
    (logits,) = graph.run(None, {graph.get_inputs()[0].name: inputs})
    return np.asarray(logits)


def _logits(decoder: Decoder, inputs: Mapping[str, Array], new: int | None) -> Array:
    """What follows each token, read so many at a time; None for all at once."""
    if "source" in inputs:
        tokens = inputs["target"][:, None]
        state = decoder.start(inputs["source"])
    else:
        tokens = inputs["tokens"]
        state = decoder.start(tokens)
        if decoder.memory_length and "context" in inputs:
            state = decoder.remember(inputs["context"][:, -decoder.memory_length :], state)
    parts = []
    step = new or tokens.shape[-1]
    for start in range(0, tokens.shape[-1], step):
        logits, state = decoder.step(tokens[..., start : start + step], state)
        parts.append(logits)
    whole = np.concatenate(parts, axis=-2)
    return whole[:, 0] if "source" in inputs else whole


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

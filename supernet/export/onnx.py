"""Exports as ONNX: a graph that classifies or embeds, or graphs that write a text.

Every graph takes any batch and any length. A decoder's step carries what it remembers as inputs
and outputs by name, see `supernet.export.onnx_driver`, which goes along as ``decode.py``.

The graph of the source and the step share no weights but a table of embeddings that source and
target have in common: that one is in both.

Graphs are traced with torch's exporter. What it notes for its own developers (traces of the source
with the paths of this machine, names of modules) is taken out; what tells a user what the graph is
goes in.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxscript  # noqa: F401  # torch's exporter needs it; so a missing one is told at once
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from search_spaces.errors import DataError
from search_spaces.tasks import TASKS
from supernet.blueprint import Blueprint
from supernet.export import onnx_driver
from supernet.export.contents import ReferenceOutputs
from supernet.export.formats import ExportFormat, ExportSource
from supernet.export.onnx_driver import Array, Decoder, session
from supernet.export.onnx_failures import FAILURES
from supernet.export.onnx_graphs import Graph, graphs_of
from supernet.export.usage import answer_lines
from supernet.extraction import StandAlone
from supernet.pretrained.tensors import first_line

RUNTIME = f"onnxruntime {onnxruntime.__version__}"
DRIVER_FILE = "decode.py"
OPSET = 23
CHATTY = (
    "torch.onnx._internal.exporter._registration",  # tells that torchvision is not there
    "onnxscript.optimizer._constant_folding",  # tells which constants it leaves alone
)
EMBEDDED_BYTES = 1_900_000_000  # a file of protocol buffers ends at 2 GB


class OnnxExport(ExportFormat):
    """ONNX graphs, and for networks that write text a driver that needs numpy and onnxruntime."""

    name = "onnx"

    def write(self, source: ExportSource, folder: Path) -> list[str]:
        """Write the graphs and the driver; see `ExportFormat.write`."""
        files = write_graphs(source.network, source.blueprint, folder)
        if not TASKS[source.blueprint.task].classifies:
            shutil.copyfile(onnx_driver.__file__, folder / DRIVER_FILE)
            files.append(DRIVER_FILE)
        return files

    def parity(self, folder: Path, blueprint: Blueprint, reference: ReferenceOutputs) -> float:
        """See `ExportFormat.parity`; texts are read at once, and again token by token."""
        inputs = {name: tensor.numpy() for name, tensor in reference.inputs.items()}
        try:
            for name in blueprint.form.graphs:
                _check_graph(folder / f"{name}.onnx", blueprint)
            if TASKS[blueprint.task].classifies:
                (graph,) = blueprint.form.graphs
                found = [_outputs(folder / f"{graph}.onnx", reference)]
            else:
                decoder = Decoder(folder, 1)
                texts = (_logits(decoder, inputs, new) for new in (None, 1))
                found = [reference.named(torch.from_numpy(one)) for one in texts]
        except (*FAILURES, KeyError, ValueError) as error:
            raise DataError(
                f"onnxruntime cannot run the graphs of {folder} ({first_line(error)}); export "
                "the network anew"
            ) from error
        return max(reference.difference(one) for one in found)

    def usage(self, source: ExportSource) -> str:
        """See `ExportFormat.usage`."""
        about = USAGE[source.blueprint.form.graphs]
        lines = answer_lines(source, "onnxruntime")
        return f"{about}\n\nFrom raw input to the answer, in this folder:\n\n{lines}"


# What the model card says, by the names of the graphs.
USAGE = {
    ("classifier",): "`classifier.onnx` takes any batch; padding of tokens is 0. It needs "
    "onnxruntime.",
    ("embedder",): "`embedder.onnx` takes any batch and length; padding is 0. It needs "
    "onnxruntime.",
    ("source", "step"): """\
`python decode.py < sentences.txt` translates one sentence a line; it needs numpy, onnxruntime and,
where the vocabulary is a sentencepiece model, sentencepiece. `--beam` and `--lenpen` are those of
`nas translate`, and the translations are the same. `decode.py` is short and shows how the graphs
work together: `source.onnx` reads sentences once, `step.onnx` goes on by one or more tokens.""",
    ("step",): """\
`python decode.py --tokens 50 < prompts.txt` goes on with each line greedily; it needs numpy,
onnxruntime and, where the vocabulary is a sentencepiece model, sentencepiece, or tokenizers where
it is a `tokenizer.json`. `decode.py` is short and shows how `step.onnx` carries on what it
remembers.""",
}


def write_graphs(network: StandAlone, blueprint: Blueprint, folder: Path) -> list[str]:
    """Write the graphs of a network; the names of their files.

    Args:
        network: in fp32, on the CPU, in evaluation mode.
        blueprint: of it.
        folder: exists.
    """
    about = facts_of(blueprint)
    return [name for graph in graphs_of(network) for name in write_graph(graph, about, folder)]


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


def _outputs(file: Path, reference: ReferenceOutputs) -> dict[str, Tensor]:
    """What a graph with one input says to that of a reference."""
    graph = session(file, 1)
    (inputs,) = reference.arguments
    made = [torch.from_numpy(one) for one in graph.run(None, {_only_input(graph): inputs.numpy()})]
    return reference.named(made[0] if len(made) == 1 else (made[0], made[1]))


def _only_input(graph: onnxruntime.InferenceSession) -> str:
    return str(graph.get_inputs()[0].name)


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


# -- tracing --------------------------------------------------------------------------------------


def write_graph(graph: Graph, about: Mapping[str, str], folder: Path) -> list[str]:
    """Write ``NAME.onnx``, checked by onnx.

    Up to 1.9 GB the weights lie in it; above, in ``NAME.onnx.data`` beside it.

    Args:
        graph: what to trace.
        about: becomes the graph's metadata.
        folder: exists.

    Returns:
        The names of the files.
    """
    file = folder / f"{graph.name}.onnx"
    weights = sum(part.numel() * part.element_size() for part in graph.module.parameters())
    program = traced(graph)
    _clean(program.model)
    program.model.metadata_props.update({**about, "graph": graph.name, "opset": str(OPSET)})
    beside = weights > EMBEDDED_BYTES
    program.save(str(file), external_data=beside)
    onnx.checker.check_model(str(file), full_check=True)
    return [file.name, f"{file.name}.data"] if beside else [file.name]


def traced(graph: Graph) -> Any:
    """The `torch.onnx.ONNXProgram` of a graph."""
    dims: dict[str, Any] = {}
    axes = [
        {axis: dims.setdefault(name, torch.export.Dim(name)) for axis, name in one.axes.items()}
        for one in graph.inputs
    ]
    with torch.no_grad(), _quiet(), PlainAttention():  # a gradient would want more of a loop
        return torch.onnx.export(
            graph.module.eval(),
            graph.grouped([one.example for one in graph.inputs]),
            dynamo=True,
            input_names=[one.name for one in graph.inputs],
            output_names=list(graph.outputs),
            dynamic_shapes=graph.grouped(axes),
            opset_version=OPSET,
            verbose=False,
        )


class PlainAttention(TorchFunctionMode):
    """Takes torch's fused attention apart into products and a softmax.

    The exporter's own way of doing so disagrees with itself about strides where there is a bias,
    and its operator of opset 23 is one whose masks onnxruntime does not broadcast.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every call of torch, that one replaced."""
        if func is F.scaled_dot_product_attention:
            return plain_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def plain_attention(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """As `torch.nn.functional.scaled_dot_product_attention`, without dropout and causal flag."""
    assert not is_causal and not dropout_p, "graphs have masks of their own, and no dropout"
    logits_BHNM = (q_BHND * q_BHND.shape[-1] ** -0.5) @ k_BHMD.mT
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits_BHNM = logits_BHNM.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits_BHNM = logits_BHNM + attn_mask
    out_BHND: Tensor = logits_BHNM.softmax(dim=-1) @ v_BHMD
    return out_BHND


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on its own code and on torchvision."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            # Told of every axis that has the size of another one, though both have one name.
            same = r"# The axis name: (\w+) will not be used, .* another axis: \1\.$"
            warnings.filterwarnings("ignore", same, UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _clean(model: Any) -> None:
    """Take out what the exporter notes about its own work."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for value in (*graph.inputs, *graph.outputs):
            value.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
    for value in model.graph.initializers.values():
        value.metadata_props.clear()

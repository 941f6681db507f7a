"""Traces a module with torch's exporter and writes it as an ONNX file.

What the exporter notes for its own developers (traces of the source with the paths of this
machine, names of modules) is taken out; what tells a user what the graph is goes in.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxscript  # noqa: F401  # torch's exporter needs it; so a missing one is told at once
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from supernet.export.onnx_signatures import Graph

OPSET = 23
CHATTY = (
    "torch.onnx._internal.exporter._registration",  # tells that torchvision is not there
    "onnxscript.optimizer._constant_folding",  # tells which constants it leaves alone
)
EMBEDDED_BYTES = 1_900_000_000  # a file of protocol buffers ends at 2 GB


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
    with _quiet(), PlainAttention():
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

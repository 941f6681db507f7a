"""Opens an exported folder to compute with its network; nothing in it is executed.

Weights are put into our own layers, and graphs of ONNX run by the driver that is copied into such
folders, of which ours is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, UsageError
from search_spaces.tasks import TASKS
from supernet.blueprint import Blueprint
from supernet.data.checkpoint_tokenizer import KIND, CheckpointTokenizer
from supernet.data.examples import unique_names
from supernet.data.tokenizer import MARKS, SentencePieceTokenizer, Tokenizer, WordTokenizer
from supernet.export.contents import READING_FILE, Preprocessing
from supernet.export.formats import package_missing
from supernet.export.stock import is_stock
from supernet.export.weights import network_of, read_tensors
from supernet.pretrained.checkpoint import CONFIG_FILE
from supernet.pretrained.families.own import PREFIX
from supernet.pretrained.tensors import first_line

WEIGHTS_FILES = ("model.safetensors", "weights.pt")


class OnnxModel:
    """Graphs of ONNX, called as our own networks are.

    Whatever runs them raises a `DataError` when onnxruntime cannot.
    """

    def __init__(self, folder: Path, blueprint: Blueprint) -> None:
        """Open the graphs.

        Args:
            folder: where they lie.
            blueprint: of the network.

        Raises:
            DataError: when a graph is missing or damaged.
            UsageError: when onnxruntime is not installed.
        """
        try:
            from supernet.export import onnx_driver
            from supernet.export.onnx_failures import FAILURES
        except ModuleNotFoundError as error:
            raise package_missing("onnx", error) from error

        graphs = [folder / f"{graph}.onnx" for graph in blueprint.form.graphs]
        if missing := [graph for graph in graphs if not graph.is_file()]:
            raise DataError(f"{missing[0]} is missing; export the network anew")
        self._driver, self._folder, self._failures = onnx_driver, folder, FAILURES
        self._graphs = " and ".join(graph.name for graph in graphs)
        self._session = self._decoder = None
        try:
            if TASKS[blueprint.task].classifies:
                self._session = onnx_driver.session(graphs[0])
            else:
                self._decoder = onnx_driver.Decoder(folder)
        except (*FAILURES, KeyError, ValueError) as error:
            raise DataError(
                f"onnxruntime cannot open the graphs of {folder} ({first_line(error)}); export "
                "the network anew"
            ) from error

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Let a failure of onnxruntime name the graphs."""
        try:
            yield
        except self._failures as error:
            raise DataError(
                f"onnxruntime cannot run {self._graphs} of {self._folder} ({first_line(error)}); "
                "export the network anew"
            ) from error

    def __call__(self, inputs: Tensor, _: Architecture) -> Tensor:
        """Images or tokens → logits of classes."""
        assert self._session is not None
        name = self._session.get_inputs()[0].name
        with self._running():
            (logits,) = self._session.run(None, {name: inputs.numpy()})
        return torch.from_numpy(logits)

    def start(self, _: Architecture) -> Any:
        """The state of a language model before the first token of one text."""
        assert self._decoder is not None
        with self._running():
            return self._decoder.start(np.zeros((1, 1), np.int64))

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """New tokens ``(1, N)`` → logits of what follows each, and the next state."""
        assert self._decoder is not None
        with self._running():
            logits, state = self._decoder.read(tokens.numpy(), state)
        return torch.from_numpy(logits), state

    def translated(self, lines: Sequence[str]) -> list[str]:
        """Translations of lines.

        Raises:
            UsageError: for a line that is too long.
            DataError: when a graph cannot be run.
        """
        try:
            with self._running():
                return self._driver.translate(self._folder, lines, self._driver.Search())
        except ValueError as error:
            raise UsageError(str(error)) from error


@dataclass(frozen=True, eq=False, slots=True)
class Package:
    """An export.

    Attributes:
        blueprint: what its network is.
        model: the network: `OnnxModel`, or one on its own as `supernet.building` makes them.
        preprocessing: without the content of the vocabularies.
        source: vocabulary of what is read; None where there is none.
        target: of what is written.
    """

    blueprint: Blueprint
    model: Any
    preprocessing: Preprocessing
    source: Tokenizer | None
    target: Tokenizer | None

    @property
    def runs_on_cpu(self) -> bool:
        """Whether it computes on the processor only."""
        return isinstance(self.model, OnnxModel)


def open_package(folder: Path) -> Package:
    """Read an exported folder.

    Raises:
        DataError: when a file is missing, damaged, or of another network.
        UsageError: for a checkpoint in another family's form, which its own program opens, and for
            graphs where onnxruntime is not installed.
    """
    if (folder / CONFIG_FILE).is_file() and is_stock(folder):
        raise UsageError(
            f"{folder} is a checkpoint that transformers opens by itself: its README.md has the "
            "lines for it"
        )
    blueprint = Blueprint.read(folder)
    facts = _facts(folder)
    labels = unique_names(tuple(map(str, facts.pop("labels", ()))))
    preprocessing = Preprocessing(facts, labels=labels)
    source, target = (_vocabulary(folder, facts, side) for side in ("source", "target"))
    if any(folder.glob("*.onnx")):
        return Package(blueprint, OnnxModel(folder, blueprint), preprocessing, source, target)
    files = [folder / name for name in WEIGHTS_FILES]
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        raise DataError(
            f"{folder} has no weights that can be read here ({', '.join(WEIGHTS_FILES)} or graphs "
            "of ONNX): export the network in one of the formats safetensors, torch, huggingface "
            "and onnx"
        )
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in read_tensors(file).items()}
    model = network_of(blueprint, tensors, str(file)).network
    return Package(blueprint, model, preprocessing, source, target)


def _facts(folder: Path) -> dict[str, Any]:
    file = folder / READING_FILE
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read ({error}); export the network anew") from error
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise DataError(f"{file} does not say how inputs are read; export the network anew")
    return found


def _vocabulary(folder: Path, facts: dict[str, Any], side: str) -> Tokenizer | None:
    """The vocabulary of a side, of the file that ``reading.json`` names."""
    name = facts.get(side)
    if name is None:
        return None
    if not isinstance(name, str) or name != Path(name).name:
        raise DataError(f"{folder / READING_FILE} names no file of the folder for the {side}")
    file = folder / name
    try:
        content = file.read_bytes()
        if facts["kind"] == KIND:
            return CheckpointTokenizer(content, facts.get("marks", {}), str(file))
        if facts["kind"] == "words":
            return WordTokenizer(json.loads(content)[len(MARKS) :])
        return SentencePieceTokenizer(content)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{file} is no vocabulary ({error}); export the network anew") from error

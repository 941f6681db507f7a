"""What an export is made of, and what a format of exports has to do.

An export is a folder. Whatever the format, it holds ``architecture.json`` (the `Blueprint`),
``reading.json`` with the tokenizer files or label names (`Reading`), real inputs with what the
run's model made of them (`Record`), a model card and checksums. A format adds its own files, and
tells how far what they compute is from the record.

Shapes: B examples, C channels or context, H height, W width, M source positions, N positions,
K classes, V target vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from search_spaces.errors import DataError
from supernet.export.blueprint import Blueprint
from supernet.extraction import StandAlone

INPUT_NAMES = ("inputs", "source", "target", "tokens", "context")


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """Real inputs, and what the run's model says about them.

    Attributes:
        inputs: by the task, tokens padded with 0: classification ``inputs`` ``(B, C, H, W)`` or
            ``(B, N)``; translation ``source`` ``(B, M)`` and ``target`` ``(B, N)``, from the begin
            mark on; language models ``tokens`` ``(B, N)``, and ``context`` ``(B, C)`` where the
            network has a memory.
        outputs: ``logits``: ``(B, K)`` for classes, else ``(B, N, V)`` for what follows each token.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The inputs in the order in which networks on their own take them."""
        return tuple(self.inputs[name] for name in INPUT_NAMES if name in self.inputs)

    def difference(self, found: Mapping[str, Tensor]) -> float:
        """The largest absolute difference of any number of the outputs; infinite if one is NaN.

        Raises:
            DataError: when an output is missing or of another shape.
        """
        largest = 0.0
        for name, expected in self.outputs.items():
            if name not in found or found[name].shape != expected.shape:
                shape = tuple(found[name].shape) if name in found else "nothing"
                raise DataError(
                    f"the check expects {name} of the shape {tuple(expected.shape)}, found {shape}"
                )
            if not expected.numel():
                continue
            apart = float((found[name].double() - expected.double()).abs().max())
            largest = max(largest, apart) if apart == apart else float("inf")
        return largest


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """How what a user has becomes what a network reads, and what its answers mean.

    Attributes:
        facts: for ``reading.json``. ``kind`` is ``sentencepiece`` or ``words`` (with ``source`` and
            ``target``, names of files, and ``num_words``, the tokens that the target's knows),
            ``images`` (with ``black`` and ``white``, the normalised
            values of the bytes 0 and 255 per channel, and ``image_size``), ``bytes`` (token =
            byte + 1), ``symbols`` (with the list of them) or ``numbers``.
        files: name → content of the tokenizer files.
        labels: names of the classes; empty where there are none.
    """

    facts: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class ExportSource:
    """A network that is to be exported.

    Attributes:
        blueprint: what it is, apart from its weights.
        network: on its own, on the CPU, in fp32 and in evaluation mode.
        record: of the run's model, for the check.
        reading: its tokenizer or labels.
    """

    blueprint: Blueprint
    network: StandAlone
    record: Record
    reading: Reading


class ExportFormat(ABC):
    """One form of export; listed by name in `supernet.export.formats`.

    Attributes:
        name: as on the command line.
        tolerance: largest difference of a logit from the run's model.
        record_file: where the record is kept; its ending says how.
        requires: packages, besides torch, without which it can neither be written nor verified.
    """

    name: ClassVar[str]
    tolerance: ClassVar[float] = 1e-4
    record_file: ClassVar[str] = "check.safetensors"
    requires: ClassVar[tuple[str, ...]] = ("safetensors",)

    def problem(self, blueprint: Blueprint) -> str | None:
        """Why the format cannot hold such a network, and what can; None when it can."""
        return None

    @abstractmethod
    def write(self, source: ExportSource, folder: Path) -> list[str]:
        """Write the format's own files into a folder that holds the common ones already.

        Args:
            source: what to export.
            folder: exists; has ``architecture.json``, ``reading.json``, tokenizers and the record.

        Returns:
            Names of the files written, relative to the folder.
        """

    @abstractmethod
    def parity(self, folder: Path, blueprint: Blueprint, record: Record) -> float:
        """What the files compute for the record's inputs, held against its outputs.

        It reads nothing but the folder, runs no code that lies in it, and is what both the end of
        an export and ``nas verify`` ask.

        Args:
            folder: of an export of this format.
            blueprint: read from it.
            record: read from it.

        Returns:
            The largest absolute difference, see `Record.difference`.

        Raises:
            DataError: when a file is missing, damaged, a pickle, or of another network.
        """

    @abstractmethod
    def usage(self, blueprint: Blueprint) -> str:
        """How to use the folder, in Markdown, for the model card: commands and what they need."""

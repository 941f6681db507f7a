"""What every space of genotypes has, whatever its genes mean.

A space is a list of *positions*, each with a tuple of choices. A *genotype* is one row of choice
indices, one per position, with 0 where a position belongs to something that is not there (a layer
beyond the last), so that equal networks are equal rows. Operators, evolution, rankers and searchers
work on matrices of such rows and ask no more of a space than stands here.

`search_spaces.space.SearchSpace` holds this project's networks, `search_spaces.genes.GeneSpace`
genes of anybody's.

N: networks; S: positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.errors import ArchitectureError

Genotypes = NDArray[np.int16]
MAX_CHOICES = 1_000  # of one gene


class Network(Protocol):
    """A network of any space."""

    @property
    def id(self) -> str:
        """The first letters of the sha256 of its JSON: equal networks have equal ids."""

    def to_json(self) -> dict[str, Any]:
        """The network as plain JSON."""


class Position(Protocol):
    """One place of a genotype."""

    @property
    def name(self) -> str:
        """Its name, different from all others of the space."""

    @property
    def gene_name(self) -> str:
        """The same for all layers of a gene."""

    @property
    def choices(self) -> tuple[Any, ...]:
        """What may stand there; where it is `ordered`, ascending."""

    @property
    def ordered(self) -> bool:
        """Whether the choices are sizes: neighbours in the tuple are alike."""


class GenotypeSpace(ABC):
    """A set of networks as rows of choice indices.

    Attributes:
        name: short name, for messages.
        description: one sentence, or nothing.
        slots: the positions, in the order of the columns.
        parent_digest: digest of the space this one was cut from, or None.
        whole_genes: whether only choices of whole genes, in all layers, can be cut, and none of
            genes that decide which others are there.
    """

    name: str
    description: str
    slots: Sequence[Position]
    parent_digest: str | None
    whole_genes: bool = False

    @cached_property
    def slot_index(self) -> dict[str, int]:
        """Name of a position → column of the genotype."""
        return {slot.name: column for column, slot in enumerate(self.slots)}

    @cached_property
    def num_choices(self) -> NDArray[np.int16]:
        """Number of choices of every position, ``(S,)``."""
        return np.array([len(slot.choices) for slot in self.slots], dtype=np.int16)

    @property
    @abstractmethod
    def size(self) -> int:
        """Exact number of distinct networks."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """sha256 of all that makes up the space."""

    @abstractmethod
    def restrict(self, choices: Mapping[str, Sequence[Any]]) -> Self:
        """A smaller space, with the same columns, that keeps only these choices.

        Args:
            choices: name of a position → its choices to keep; others keep all.
        """

    @abstractmethod
    def network(self, data: Any) -> Network:
        """Read a network from what `Network.to_json` wrote; it need not be of this space.

        Raises:
            ArchitectureError: when it is none.
        """

    @property
    @abstractmethod
    def deciding_columns(self) -> Sequence[int]:
        """Columns whose values decide which other positions are there."""

    @abstractmethod
    def active(self, genotypes: Genotypes) -> NDArray[np.bool_]:
        """True where a position belongs to something that is there, ``(N, S)``."""

    @abstractmethod
    def completed(self, genotype: Genotypes) -> Genotypes:
        """One row ``(1, S)`` with a likely choice in every position that is not there."""

    @abstractmethod
    def decode(self, genotypes: Genotypes) -> list[Any]:
        """Rows ``(N, S)`` → networks."""

    @abstractmethod
    def encode(self, architectures: Iterable[Any]) -> Genotypes:
        """Networks → canonical rows ``(N, S)``.

        Raises:
            ArchitectureError: for a network outside the space, naming the gene.
        """

    def contains(self, architecture: Any) -> bool:
        """Whether the network belongs to the space."""
        try:
            self.encode([architecture])
        except ArchitectureError:
            return False
        return True

    def canonical(self, genotypes: Genotypes) -> Genotypes:
        """The same networks with 0 in every position that is not there, ``(N, S)``."""
        return np.where(self.active(genotypes), genotypes, 0).astype(np.int16)

    def translate(self, genotypes: Genotypes, target: GenotypeSpace) -> Genotypes:
        """Rows of this space as rows of `target`, whose positions offer at least these choices."""
        out = np.zeros_like(genotypes)
        for column, (mine, theirs) in enumerate(zip(self.slots, target.slots, strict=True)):
            lookup = np.array([theirs.choices.index(c) for c in mine.choices], dtype=np.int16)
            out[:, column] = lookup[genotypes[:, column]]
        return target.canonical(out)

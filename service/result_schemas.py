"""What goes over the wire of a job's results: fronts, networks, files."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ArtifactOut(BaseModel):
    """A file of a job's run; the checksum is the one its stage has recorded."""

    path: str
    size: int
    sha256: str | None
    stage: str | None


class EntryOut(BaseModel):
    """One network: what was measured of it and what was predicted.

    `doubtful` names measured values that should not be believed, each with the reason.
    """

    id: str
    architecture: dict[str, Any]
    measured: dict[str, float]
    predicted: dict[str, float]
    doubtful: dict[str, str] = {}


class ObjectiveOut(BaseModel):
    """What was minimised; at the reference a network is of no use."""

    name: str
    metric: str
    unit: str
    goal: str
    reference: float | None = None


class FrontOut(BaseModel):
    """The Pareto front; `final` is false while the search is still measuring."""

    final: bool
    objectives: list[ObjectiveOut]
    front: list[EntryOut]
    hypervolume: float | None


class ArchitectureOut(EntryOut):
    """A network, what it costs and what came of training it from scratch.

    `problem` tells when it learnt less from scratch than it had inherited from the supernet.
    """

    on_front: bool
    retrained: dict[str, Any] | None
    problem: str | None


class OmniLayerOut(BaseModel):
    """Shares of one omni layer; `sources` are layers' numbers, 0 for the embeddings.

    `attention` has for each head a row for each source of the queries, with the share of their
    attention that each source of the keys gets; `pooling` is the share of features kept from each.
    """

    stack: Literal["encoder", "decoder"]
    layer: int
    sources: list[int]
    attention: list[list[list[float]]]
    pooling: list[float]


class OmniMapOut(BaseModel):
    """The same for one image, patch by patch, for each source."""

    example: int
    layer: int
    attention: list[list[float]]
    pooling: list[list[float]]


class OmniViewsOut(BaseModel):
    """What the omni layers of a network look at."""

    id: str
    weights: Literal["trained from scratch", "inherited"]
    examples: int
    layers: list[OmniLayerOut]
    maps: list[OmniMapOut]

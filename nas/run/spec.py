"""Everything that determines a run, validated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from nas.objectives import COSTS, LATENCY, OBJECTIVES, QUALITY, QualityMetric
from nas.run.vetoes import checked_vetoes
from search_spaces.errors import UsageError
from search_spaces.loading import parse_space
from search_spaces.space import Choice, SearchSpace
from supernet.training_settings import TrainingSettings

SearcherName = Literal["rank-evolve", "ranknas", "nsga2", "tpe", "random"]
Positive = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EvolutionBudget(_Frozen):
    """Size of the evolutionary search."""

    population: Annotated[int, Field(ge=4, le=100_000)] = 96
    generations: Positive = 40
    mutation_rate: Share = 0.1


class RoundsBudget(_Frozen):
    """How rank-evolve spends its observations.

    Attributes:
        first: networks of the first sample.
        batch: networks observed in each round after it.
        patience: rounds without gain after which it is content; 0 spends everything.
        prune: whether rounds evolve in a pruned space; the stage after them prunes in any case.
    """

    first: Annotated[int, Field(ge=8, le=1_000_000)] = 32
    batch: Annotated[int, Field(ge=1, le=10_000)] = 8
    patience: Annotated[int, Field(ge=0, le=10_000)] = 4
    prune: bool = False


class Budget(_Frozen):
    """How much a run may do; presets fill it, every number can be overridden.

    Attributes:
        threads: CPU threads that train and are timed; None leaves it to torch (all cores). Small
            networks are fastest with one, and sums over another number differ in the last bits.
        supernet: training of the supernet.
        valid_examples: validation examples (images, pairs or lines) that networks are compared on
            while searching; 0 for all.
        observations: most networks whose inherited quality is measured before the last ones are
            verified.
        rounds: how rank-evolve divides them.
        latency_samples: networks that are timed for the latency predictor.
        timing_rounds: interleaved timed runs of each network.
        evolution: size of the evolutionary search.
        verified: best candidates that are measured at the end.
        min_pairwise_accuracy: held-out accuracy the ranker needs before pruning may cut.
        retrain: training of the chosen network from scratch.
    """

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    supernet: TrainingSettings = TrainingSettings()
    valid_examples: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    observations: Annotated[int, Field(ge=8, le=1_000_000)] = 160
    rounds: RoundsBudget = RoundsBudget()
    latency_samples: Annotated[int, Field(ge=8, le=100_000)] = 40
    timing_rounds: Positive = 15
    evolution: EvolutionBudget = EvolutionBudget()
    verified: Annotated[int, Field(ge=1, le=100_000)] = 24
    min_pairwise_accuracy: Share = 0.75
    retrain: TrainingSettings = TrainingSettings()


class SearchSpec(_Frozen):
    """A search, whole: two runs with equal specs are one run.

    Attributes:
        space_toml: the text of the space.
        dataset: name of a data set, or of the prepared folder; ``synthetic`` is generated.
        data: a folder made by ``nas data prepare``, or the file of a data set that needs one.
        device: ``cpu`` or ``cuda``; where networks are trained and timed.
        objectives: ``quality`` and at least one cost.
        quality: what quality is: ``loss`` on the validation split, or ``bleu`` (translation only).
        limits: largest allowed value of a cost.
        searcher: how networks to observe are chosen: ``rank-evolve`` ranks and evolves in rounds,
            ``ranknas`` once, after a random sample; ``nsga2``, ``tpe`` and ``random`` are Optuna's
            samplers, which learn from observations alone.
        preset: which preset the budget started from.
        budget: the numbers.
        seed: of everything random.
        pick: which network of the front is retrained: ``best`` (the lowest loss within the
            limits), ``knee`` or an id.
        keep: vetoes: gene or slot → choices that pruning may not cut.
        device_profile: digest of the device profile that predicts latency, which the run folder
            keeps; None where networks are timed for that.
    """

    space_toml: str
    dataset: str
    data: str | None = None
    device: str = "cpu"
    objectives: tuple[str, ...] = (QUALITY, LATENCY)
    quality: QualityMetric = "loss"
    limits: dict[str, float] = {}
    searcher: SearcherName = "rank-evolve"
    preset: str = "quick"
    budget: Budget = Budget()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    pick: str = "best"
    keep: dict[str, tuple[Choice, ...]] = {}
    device_profile: str | None = None

    @field_validator("objectives")
    @classmethod
    def _objectives(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in OBJECTIVES:
                raise ValueError(f"unknown objective {name!r}; known are {', '.join(OBJECTIVES)}")
        if len(set(names)) != len(names):
            raise ValueError(f"an objective is named twice in {','.join(names)}")
        if QUALITY not in names or len(names) < 2:
            raise ValueError(f"objectives need quality and at least one of {', '.join(COSTS)}")
        return tuple(name for name in OBJECTIVES if name in names)  # quality comes first

    @field_validator("limits")
    @classmethod
    def _limits(cls, limits: dict[str, float]) -> dict[str, float]:
        for name, value in limits.items():
            if name not in COSTS:
                raise ValueError(f"no limit can be set on {name!r}; known are {', '.join(COSTS)}")
            if value <= 0:
                raise ValueError(f"the limit {name}={value:g} must be above 0")
        return dict(sorted(limits.items()))

    @field_validator("keep")
    @classmethod
    def _keep(
        cls, keep: dict[str, tuple[Choice, ...]], info: ValidationInfo
    ) -> dict[str, tuple[Choice, ...]]:
        if not keep or "space_toml" not in info.data:
            return keep
        return checked_vetoes(parse_space(info.data["space_toml"], "the run's space.toml"), keep)

    @cached_property
    def space(self) -> SearchSpace:
        """The parsed space."""
        return parse_space(self.space_toml, "the run's space.toml")

    def asks_for(self, name: str) -> bool:
        """Whether something is an objective or limited."""
        return name in self.objectives or name in self.limits

    @property
    def needs_latency(self) -> bool:
        """Whether networks have to be timed."""
        return self.asks_for(LATENCY)

    @property
    def ranks(self) -> bool:
        """Whether the searcher ranks networks, and so can prune the space and evolve in it."""
        return self.searcher in ("rank-evolve", "ranknas")

    @cached_property
    def digest(self) -> str:
        """sha256 of the whole spec; fields that older versions had not are left out when unused."""
        values = self.model_dump(mode="json")
        if not self.keep:
            del values["keep"]
        if self.device_profile is None:
            del values["device_profile"]
        for training in (values["budget"]["supernet"], values["budget"]["retrain"]):
            if not training["checkpoint_updates"]:
                del training["checkpoint_updates"]
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def build_spec(**values: Any) -> SearchSpec:
    """Validate a spec.

    Raises:
        UsageError: one sentence naming the field at fault, what it was and what it may be.
    """
    try:
        return SearchSpec(**values)
    except ValidationError as error:
        raise UsageError(_first_problem(error)) from error


def build_budget(values: Mapping[str, Any]) -> Budget:
    """Validate a budget given as nested mappings.

    Raises:
        UsageError: one sentence naming the number at fault.
    """
    try:
        return Budget.model_validate(values)
    except ValidationError as error:
        raise UsageError(_first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"there is no setting {where!r}; nas search --list-settings names all"
    if problem["type"] == "value_error":
        return message
    return f"{where} is {problem['input']!r}: {message[0].lower()}{message[1:]}"

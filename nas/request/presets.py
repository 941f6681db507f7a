"""How much a search may do: the numbers of a budget, and presets of them by name.

A space's own ``[presets.NAME]`` tables override the presets, whose defaults fit what its networks
can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from nas.request.fields import FROZEN, UNKNOWN_FIELD, allowed, first_problem, nearest
from search_spaces.errors import UnknownNameError, UsageError
from search_spaces.space import SearchSpace
from search_spaces.tasks import TASKS
from search_spaces.toml.source import TomlSource, shown, unknown_name
from supernet.data.augmentation import parse_augmentation
from supernet.training_settings import TrainingSettings

Positive = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
TRAINED_HERE = "trained here"
"""Marks a number, or a table of them, that an evaluator's networks have nothing to do with."""


class EvolutionBudget(BaseModel):
    """Size of the evolutionary search."""

    model_config = FROZEN

    population: Annotated[int, Field(ge=4, le=100_000)] = 96
    generations: Positive = 40
    mutation_rate: Share = 0.1


class RoundsBudget(BaseModel):
    """How rank-evolve spends its observations.

    Attributes:
        first: networks of the first sample.
        batch: networks observed in each round after it.
        patience: rounds without gain after which it is content; 0 spends everything.
        prune: whether rounds evolve in a pruned space; the stage after them prunes in any case.
    """

    model_config = FROZEN

    first: Annotated[int, Field(ge=8, le=1_000_000)] = 32
    batch: Annotated[int, Field(ge=1, le=10_000)] = 8
    patience: Annotated[int, Field(ge=0, le=10_000)] = 4
    prune: Annotated[bool, TRAINED_HERE] = False


class DistilBudget(BaseModel):
    """How other kinds of attention learn what a checkpoint's layers do.

    Attributes:
        updates: of each kind in each layer, all of them in one pass.
        learning_rate: at the start; it falls to 0 along a cosine.
    """

    model_config = FROZEN

    updates: Annotated[int, Field(ge=0, le=10_000_000)] = 100
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 1e-3


class Budget(BaseModel):
    """How much a run may do; presets fill it, every number can be overridden.

    Attributes:
        threads: CPU threads that train and are timed; None leaves it to torch (all cores). Small
            networks are fastest with one, and sums over another number differ in the last bits.
        distil: with a checkpoint: what layers learn before the supernet is trained.
        supernet: training of the supernet.
        own_updates: 0 to observe networks with weights inherited from the supernet. Above 0 there
            is no supernet: each network is trained alone for so many updates before it is
            observed, otherwise with the numbers of `retrain`, whose schedule ends with them.
        own_seeds: trainings of each network that is trained alone, each with first weights and an
            order of examples of its own; what is observed is the mean of their scores.
        valid_examples: validation examples (images, pairs or lines) that networks are compared on
            while searching; 0 for all.
        observations: most networks whose quality is measured before the last ones are
            verified.
        rounds: how rank-evolve divides them.
        latency_samples: networks that are timed for the latency predictor.
        timing_rounds: interleaved timed runs of each network.
        evolution: size of the evolutionary search.
        verified: best candidates that are measured at the end.
        min_pairwise_accuracy: held-out accuracy the ranker needs before pruning may cut.
        retrain: training of the chosen network from scratch.
    """

    model_config = FROZEN

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    distil: Annotated[DistilBudget, TRAINED_HERE] = DistilBudget()
    supernet: Annotated[TrainingSettings, TRAINED_HERE] = TrainingSettings()
    own_updates: Annotated[int, Field(ge=0, le=10_000_000), TRAINED_HERE] = 0
    own_seeds: Annotated[int, Field(ge=1, le=1000), TRAINED_HERE] = 1
    valid_examples: Annotated[int, Field(ge=0, le=100_000_000), TRAINED_HERE] = 0
    observations: Annotated[int, Field(ge=8, le=1_000_000)] = 160
    rounds: RoundsBudget = RoundsBudget()
    latency_samples: Annotated[int, Field(ge=8, le=100_000), TRAINED_HERE] = 40
    timing_rounds: Annotated[Positive, TRAINED_HERE] = 15
    evolution: EvolutionBudget = EvolutionBudget()
    verified: Annotated[int, Field(ge=1, le=100_000)] = 24
    min_pairwise_accuracy: Share = 0.75
    retrain: Annotated[TrainingSettings, TRAINED_HERE] = TrainingSettings()


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "smoke": {
        "distil": {"updates": 10},
        "supernet": {"epochs": 4},
        "observations": 32,
        "rounds": {"first": 16},
        "latency_samples": 12,
        "timing_rounds": 5,
        "evolution": {"population": 32, "generations": 8},
        "verified": 10,
        "retrain": {"epochs": 4},
    },
    "quick": {},
    "standard": {
        "distil": {"updates": 400},
        "supernet": {"epochs": 150},
        "observations": 400,
        "rounds": {"first": 64, "patience": 6},
        "latency_samples": 100,
        "timing_rounds": 31,
        "evolution": {"population": 128, "generations": 80},
        "verified": 48,
        "retrain": {"epochs": 200},
    },
    "paper": {
        "distil": {"updates": 2000},
        "supernet": {"epochs": 500},
        "observations": 2000,
        "rounds": {"first": 128, "batch": 16, "patience": 10},
        "latency_samples": 400,
        "timing_rounds": 51,
        "evolution": {"population": 128, "generations": 200},
        "verified": 100,
        "retrain": {"epochs": 500},
    },
}


def budget_for(space: SearchSpace | None, preset: str, overrides: Mapping[str, str]) -> Budget:
    """The numbers of a preset, then the space's own, then the user's.

    Args:
        space: its ``[presets]`` tables may override any number; None for one without such tables.
        preset: ``smoke``, ``quick``, ``standard`` or ``paper``.
        overrides: dotted names of numbers → new values as text, for example
            ``{"supernet.epochs": "30"}``.

    Raises:
        UnknownNameError: for an unknown preset or number.
        UsageError: for a value out of its range.
    """
    merged = preset_values(space, preset)
    for name, text in overrides.items():
        group, _, number = check_setting(name).rpartition(".")
        merged = _merge(merged, {group: {number: text}} if group else {number: text})
    return build_budget(merged)


def preset_values(space: SearchSpace | None, preset: str) -> dict[str, Any]:
    """What a preset and a space's table for it say, not checked.

    Raises:
        UnknownNameError: for an unknown preset.
    """
    if preset not in PRESETS:
        hint = nearest(preset, PRESETS)
        raise UnknownNameError(f"no preset {preset!r}{hint} (there are {', '.join(PRESETS)})")
    if space is None:
        return dict(PRESETS[preset])
    return _merge(_merge(_fitting(space), PRESETS[preset]), space.presets.get(preset, {}))


def _fitting(space: SearchSpace) -> dict[str, Any]:
    """What trainings have in place of a default that is more than networks of a space can read."""
    longest = space.model.max_length
    if not TASKS[space.task].continues or longest >= TrainingSettings().segment_length:
        return {}
    return {table: {"segment_length": longest} for table in ("supernet", "retrain")}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def setting_names() -> list[str]:
    """Dotted names of all numbers of a budget."""
    return [name for name, _ in flat(Budget())]


def check_setting(name: str) -> str:
    """The name of a number of a budget.

    Raises:
        UnknownNameError: for a number there is not, naming the nearest.
    """
    known = setting_names()
    if name not in known:
        raise UnknownNameError(
            f"there is no setting {name!r}{nearest(name, known)} "
            "(nas search --list-settings names all)"
        )
    return name


def _of_kind(value: Any, form: Mapping[str, Any]) -> bool:
    """Whether it is a number where one is asked for, and so on; Python takes other things, too."""
    if isinstance(value, bool):
        return bool(form["type"] == "boolean")
    if isinstance(value, int | float):
        return form["type"] in ("integer", "number")
    return bool(form["type"] == "string")


def trained_here(name: str) -> bool:
    """Whether a number of a budget is for networks that are trained here, and for no others."""
    table, _, number = name.rpartition(".")
    field = Budget.model_fields[table or number]
    inner = getattr(field.annotation, "model_fields", {}).get(number)
    return any(one is not None and TRAINED_HERE in one.metadata for one in (field, inner))


def flat(budget: Budget) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of all numbers of a budget."""
    for name, value in budget.model_dump().items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", number) for part, number in value.items())
        else:
            yield name, value


def build_budget(values: Mapping[str, Any]) -> Budget:
    """Validate a budget given as nested mappings.

    Raises:
        UsageError: one sentence naming the number at fault.
    """
    try:
        return Budget.model_validate(values)
    except ValidationError as error:
        raise UsageError(first_problem(error, Budget)) from error


def check_trainings(budget: Budget) -> None:
    """Refuse numbers of a training that would change nothing in it, or cannot be read.

    Only what is asked for is checked: runs that have such numbers are read as they are.

    Raises:
        UsageError: naming the number, and what to set in its place; its `field` is ``settings``, or
            the setting itself.
    """
    supernet, retrain = budget.supernet, budget.retrain
    for table, training in (("supernet", supernet), ("retrain", retrain)):
        try:
            parse_augmentation(training.augmentation)
        except UsageError as error:
            error.field = f"settings/{table}.augmentation"
            raise
    if supernet.average_last:
        raise UsageError(
            f"supernet.average_last is {supernet.average_last:,}, but only a network that trains "
            "alone ends with the mean of its last weights: set retrain.average_last, and "
            "supernet.average_last to 0"
        )
    if retrain.stop_tau <= 1.0:
        raise UsageError(
            f"retrain.stop_tau is {retrain.stop_tau:g}, but a network that trains alone has no "
            "ranking that could be stable: set it to 2; retrain.stop_loss ends such a training"
        )
    if supernet.stop_tau <= 1.0 and supernet.num_probes < 2:
        raise UsageError(
            f"supernet.stop_tau is {supernet.stop_tau:g}, but the one network of "
            "supernet.num_probes has no ranking that could be stable: set supernet.num_probes to 2 "
            "or more, or supernet.stop_tau to 2"
        )


def check_presets(source: TomlSource, space: SearchSpace) -> None:
    """Refuse presets that no search could use.

    Args:
        source: the file, which knows the line of each key.
        space: what was read from it.

    Raises:
        SpaceFileError: naming file, line, preset and key, what was found and what is allowed.
    """
    for preset in space.presets:
        if preset not in PRESETS:
            raise source.error(("presets", preset), unknown_name(preset, PRESETS))
    for preset in PRESETS:
        try:
            Budget.model_validate(preset_values(space, preset))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = tuple(map(str, problem["loc"]))
            unknown = problem["type"] in UNKNOWN_FIELD
            path = ("presets", preset, *key)
            raise source.error(
                path,
                unknown_name(key[-1], _form(key[:-1])["properties"])
                if unknown
                else _not_allowed(problem["input"], _form(key)),
            ) from None
        for group, given in space.presets.get(preset, {}).items():
            values = given if isinstance(given, Mapping) else {"": given}
            for name, value in values.items():
                key = tuple(part for part in (group, name) if part)
                if not _of_kind(value, form := _form(key)):
                    raise source.error(("presets", preset, *key), _not_allowed(value, form))


def _not_allowed(value: Any, form: Mapping[str, Any]) -> str:
    return f"found {shown(value)}, allowed is {allowed(form)}"


@cache
def _schema() -> Mapping[str, Any]:
    return Budget.model_json_schema()


def _form(key: Iterable[str]) -> Mapping[str, Any]:
    """The part of the JSON schema of budgets that describes a key."""
    schema = _schema()
    form: Mapping[str, Any] = schema
    for part in key:
        form = form["properties"][part]
        form = next((one for one in form.get("anyOf", ()) if one.get("type") != "null"), form)
        if "$ref" in form:
            form = schema["$defs"][form["$ref"].rpartition("/")[2]]
    return form

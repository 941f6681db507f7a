"""The stages of a search, from the space to the front, in order.

Each stage reads files of earlier stages, writes its own, and yields events. This package joins
the supernet and the latency floor with the search; the mathematics it calls knows neither.
"""

from __future__ import annotations

from nas.request.spec import SearchSpec
from nas.run.layout import (
    BEST_SUPERNET_FILE,
    DATA_FILE,
    FRONT_FILE,
    HISTORY_FILE,
    HOLDING_FILE,
    IMPORTANCES_FILE,
    MEMORY_FILE,
    MEMORY_PREDICTOR_FILE,
    OBSERVATIONS_FILE,
    POPULATION_FILE,
    PREDICTOR_FILE,
    PROFILE_FILE,
    PRUNED_SPACE_FILE,
    PRUNING_FILE,
    RANKER_FILE,
    RAY_TRAIN_FOLDER,
    REPORT_CARD_FILE,
    SPACE_FILE,
    SUPERNET_FILE,
    VERIFICATION_FILE,
    VETOES_FILE,
)
from nas.run.stage_runner import Stage
from nas.stages import learn, search
from nas.stages.base import Run
from nas.stages.memory import measure_memory
from nas.stages.observe import observe
from nas.stages.verification import verify

SEARCH_STAGES: tuple[Stage[Run], ...] = (
    Stage("declare", "Check the request", (), (SPACE_FILE, DATA_FILE), learn.declare),
    Stage(
        "latency",
        "Time sampled networks",
        ("declare",),
        (PROFILE_FILE, PREDICTOR_FILE),
        learn.measure_latency,
    ),
    Stage(
        "memory",
        "Measure peak memory",
        ("declare",),
        (MEMORY_FILE, MEMORY_PREDICTOR_FILE),
        measure_memory,
    ),
    Stage(
        "supernet",
        "Train the supernet",
        ("declare",),
        (SUPERNET_FILE, BEST_SUPERNET_FILE, HISTORY_FILE),
        learn.train_supernet,
        scratch=(RAY_TRAIN_FOLDER,),
    ),
    Stage(
        "observe",
        "Observe networks",
        ("supernet", "latency", "memory"),
        (OBSERVATIONS_FILE,),
        observe,
    ),
    Stage(
        "rank",
        "Fit the ranker",
        ("observe",),
        (RANKER_FILE, REPORT_CARD_FILE, IMPORTANCES_FILE),
        learn.rank,
    ),
    Stage(
        "prune",
        "Prune the space",
        ("rank", "observe", "latency", "memory"),
        (PRUNED_SPACE_FILE, PRUNING_FILE),
        search.prune_space,
        reads=(VETOES_FILE,),
    ),
    Stage(
        "evolve",
        "Evolve on predictions",
        ("prune", "rank", "latency", "memory"),
        (POPULATION_FILE,),
        search.evolve_population,
    ),
    Stage(
        "verify",
        "Measure the best",
        ("evolve", "observe", "supernet"),
        (VERIFICATION_FILE, HOLDING_FILE),
        verify,
    ),
    Stage(
        "front",
        "Find the Pareto front",
        ("verify", "observe", "rank", "latency", "memory"),
        (FRONT_FILE,),
        search.find_front,
    ),
)


def search_stages(spec: SearchSpec) -> list[Stage[Run]]:
    """The stages that a search really has."""
    return [stage for stage in SEARCH_STAGES if spec.has_stage(stage.name)]

"""The stages of a search, from the space to the front, in order.

Each stage reads files of earlier stages, writes its own, and yields events. This package joins
the supernet and the latency floor with the search; the mathematics it calls knows neither.
"""

from __future__ import annotations

from nas.request.spec import SearchSpec
from nas.run.folder import DATA_FILE, VETOES_FILE
from nas.run.stage_runner import Stage
from nas.search.front import FRONT_FILE
from nas.stages import learn, search
from nas.stages.base import (
    HOLDING_FILE,
    MEMORY_FILE,
    MEMORY_PREDICTOR_FILE,
    OBSERVATIONS_FILE,
    POPULATION_FILE,
    PREDICTOR_FILE,
    PROFILE_FILE,
    VERIFICATION_FILE,
    Run,
)
from nas.stages.memory import measure_memory
from nas.stages.observe import observe
from nas.stages.verification import verify

SEARCH_STAGES: tuple[Stage[Run], ...] = (
    Stage("declare", "Check the request", (), ("space.toml", DATA_FILE), learn.declare),
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
        ("supernet/last.pt", "supernet/best.pt", "supernet/history.json"),
        learn.train_supernet,
        scratch=("supernet/ray",),
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
        ("ranker/ranker.json", "ranker/report_card.json", "ranker/importances.json"),
        learn.rank,
    ),
    Stage(
        "prune",
        "Prune the space",
        ("rank", "observe", "latency", "memory"),
        ("pruned_space.toml", "pruning.json"),
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

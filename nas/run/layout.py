"""The files of a run folder."""

from __future__ import annotations

SPEC_FILE = "spec.json"
EVENTS_FILE = "events.jsonl"
DEVICE_PROFILE_FILE = "device_profile.json"
LOCK_FILE = ".lock"
SPACE_FILE = "space.toml"
DATA_FILE = "data.json"
PROFILE_FILE = "latency/profile.jsonl"
WEIGHTS_FILE = "supernet/last.pt"
HISTORY_FILE = "supernet/history.json"
OBSERVATIONS_FILE = "observations.jsonl"
RANKER_FILE = "ranker/ranker.json"
CARD_FILE = "ranker/report_card.json"
IMPORTANCES_FILE = "ranker/importances.json"
VETOES_FILE = "vetoes.json"
PRUNED_FILE = "pruned_space.toml"
PRUNING_FILE = "pruning.json"
POPULATION_FILE = "population.jsonl"
VERIFICATION_FILE = "verification.jsonl"
CONFIRMED_FILE = "holding.jsonl"
FRONT_FILE = "pareto.json"
REPORT_FILE = "report.html"
STUDY_FILE = "optuna.journal"


def predictor_file(stage: str) -> str:
    """What a stage fitted to networks that it timed or measured."""
    return f"{stage}/predictor.json"


def measured_file(stage: str) -> str:
    """The journal of networks that a stage measured."""
    return f"{stage}/observed.jsonl"

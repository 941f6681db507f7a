"""Names of the files and folders of a run, relative to its folder.

Every other module takes them from here, but for files that one stage alone knows: they stand beside
its row in `nas.run.stages`. ``docs/run_folder.md`` tells who writes each and what is in it.
"""

from __future__ import annotations

SPEC_FILE = "spec.json"
SPACE_FILE = "space.toml"
DATA_FILE = "data.json"
DEVICE_PROFILE_FILE = "device_profile.json"
INHERITED_FILE = "inherited/weights.pt"
BASELINE_FILE = "inherited/baseline.json"
DISTILLED_FILE = "distilled/weights.pt"
DISTIL_CHECKPOINTS = "distilled/checkpoints"
DISTILLED_ERRORS_FILE = "distilled/errors.json"
SUPERNET_FILE = "supernet/last.pt"
HISTORY_FILE = "supernet/history.json"
RAY_TRAIN_FOLDER = "supernet/ray"
OBSERVATIONS_FILE = "observations.jsonl"
RANKER_FILE = "ranker/ranker.json"
REPORT_CARD_FILE = "ranker/report_card.json"
IMPORTANCES_FILE = "ranker/importances.json"
PRUNED_SPACE_FILE = "pruned_space.toml"
PRUNING_FILE = "pruning.json"
PROTECTED_FILE = "vetoes.json"
POPULATION_FILE = "population.jsonl"
VERIFICATION_FILE = "verification.jsonl"
HOLDING_FILE = "holding.jsonl"
BASELINES_FILE = "baselines.json"
FRONT_FILE = "pareto.json"
EXCHANGES_FILE = "exchanges.jsonl"
CONTEXTS_FILE = "contexts.jsonl"
HALVING_FILE = "halving.jsonl"
WINNER_FILE = "winner.json"
NOTHING = "nothing"  # in place of the kind of a layer whose attention adds nothing
REPORT_FILE = "report.html"
EVENTS_FILE = "events.jsonl"
DURATION_FILE = "duration.json"
CRASH_FILE = "crash.log"
LOCK_FILE = ".lock"
ATTEMPTS_FOLDER = ".attempts"
TENSORBOARD_FOLDER = "tensorboard"
# Below the folder of a setting that was tried, which is named by its key.
TRIAL_SETTINGS = "settings.json"
TRIAL_REPORTS = "reports.jsonl"
TRIAL_RESULT = "trial.json"
TRIAL_WEIGHTS = "weights.pt"
WORKERS_FOLDER = "workers"
WORKERS_STATE_FILE = "workers/state.json"


def profile_file(stage: str) -> str:
    """The times of the networks that a stage timed."""
    return f"{stage}/profile.jsonl"


def predictor_file(stage: str) -> str:
    """What a stage fitted to networks that it timed or measured."""
    return f"{stage}/predictor.json"


def measured_file(stage: str) -> str:
    """The journal of the networks that a stage measured."""
    return f"{stage}/observed.jsonl"


def record_file(stage: str) -> str:
    """What a finished stage read and wrote; ``*`` stands for any stage."""
    return f"stages/{stage}.json"


def begun_file(stage: str) -> str:
    """What a stage that was begun reads."""
    return f"stages/{stage}.begun"


def result_file(network_id: str) -> str:
    """The scores of a network trained from scratch; ``*`` stands for any network."""
    return f"retrained/{network_id}/result.json"


def weights_file(network_id: str) -> str:
    """The weights of a network trained from scratch."""
    return f"retrained/{network_id}/weights.pt"


def checkpoints_folder(network_id: str) -> str:
    """What a retraining that has not ended goes on from."""
    return f"retrained/{network_id}/checkpoints"


def asked_file(network_id: str) -> str:
    """What was asked of a network's training in place of what the run says."""
    return f"retrained/{network_id}/tuning.json"


def tuning_folder(network_id: str) -> str:
    """The settings that were tried, a folder each."""
    return f"retrained/{network_id}/tuning"


def scratch_file(network_id: str) -> str:
    """The scores of a network of a checkpoint's search when it is trained from scratch."""
    return f"retrained/{network_id}/from_scratch.json"


def scratch_checkpoints_folder(network_id: str) -> str:
    """What such a training that has not ended goes on from."""
    return f"retrained/{network_id}/from_scratch"


def attention_file(network_id: str) -> str:
    """What the omni layers of a network look at."""
    return f"attention/{network_id}.json"


def export_folder(network_id: str, form: str) -> str:
    """A network as a folder of its own, in a format."""
    return f"export/{network_id}/{form}"


def fairseq_folder(network_id: str) -> str:
    """What fairseq trains a network with."""
    return f"fairseq/{network_id}"


def worker_log(name: str) -> str:
    """What a worker did."""
    return f"workers/{name}.log"

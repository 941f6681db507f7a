"""What a model card tells of an exported network, as plain values: ``export.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latency.profile import read_profile
from nas.objectives import LATENCY
from nas.results.networks import measured_networks
from nas.run.folder import RunFolder
from nas.run.layout import DATA_FILE, FRONT_FILE, PROFILE_FILE, result_file
from nas.search.front import read_front
from search_spaces.architecture import Architecture
from search_spaces.costs import cost
from search_spaces.settings import ImageInput

SCHEMA = 1
LICENCE = "Apache-2.0"
# Of a result these are told elsewhere, or are no scores.
_NO_SCORES = ("schema", "id", "architecture", "task", "dataset", "epochs", "seed", "params")
_OBSERVED_SCORES = ("valid_loss", "valid_accuracy", "valid_bleu")


def gather_facts(folder: RunFolder, architecture: Architecture, inherited: bool) -> dict[str, Any]:
    """What a run knows of a network, for people who have not got the run.

    Args:
        folder: the run.
        architecture: the network.
        inherited: whether its weights are the supernet's.

    Raises:
        DamagedRunError: when a file of the run cannot be read.
    """
    spec, data = folder.spec, folder.read_json(DATA_FILE)
    space = spec.space
    return {
        "schema": SCHEMA,
        "id": architecture.id,
        "task": space.task,
        "space": {"name": space.name, "digest": space.digest, "description": space.description},
        "data": {"name": data.get("dataset", spec.dataset), "digest": data.get("digest")},
        "run": spec.digest,
        "seed": spec.seed,
        "weights": "inherited" if inherited else "retrained",
        "scores": _inherited_scores(folder, architecture)
        if inherited
        else _scores(folder, architecture),
        "latency": _latency(folder, architecture),
        **_costs(folder, architecture),
        "licence_of_code": LICENCE,
    }


def _scores(folder: RunFolder, architecture: Architecture) -> dict[str, Any]:
    """The scores of the network that was trained from scratch; how long that took."""
    result = folder.read_json(result_file(architecture.id))
    scores = {name: value for name, value in result.items() if name not in _NO_SCORES}
    return scores | ({"epochs": result["epochs"]} if "epochs" in result else {})


def _inherited_scores(folder: RunFolder, architecture: Architecture) -> dict[str, Any]:
    """What the search measured with the supernet's weights, on the validation split."""
    found = measured_networks(folder).get(architecture.id, {})
    scores = {name: found[name] for name in _OBSERVED_SCORES if name in found}
    if folder.spec.quality == "loss" and "quality" in found:
        scores["valid_loss"] = found["quality"]
    return scores


def _costs(folder: RunFolder, architecture: Architecture) -> dict[str, Any]:
    space = folder.spec.space
    image = isinstance(space.model.input, ImageInput)
    source = None if image else space.workload.get("source")
    target = space.workload.get("target") if space.task == "translation" else None
    counted = cost(space.model, space.task, architecture, "true", source, target)
    lengths: dict[str, Any] = {"source_length": counted.source_length}
    if counted.target_length is not None:
        lengths["target_length"] = counted.target_length
    return {
        "params": counted.params,
        "flops": {"value": counted.flops, "convention": counted.convention, **lengths},
    }


def _latency(folder: RunFolder, architecture: Architecture) -> dict[str, Any] | None:
    """Milliseconds with workload and device, measured or predicted; None where nobody asked."""
    file = folder.path / PROFILE_FILE
    foreign = _predicted_latency(folder, architecture)
    if foreign is not None or not file.exists():
        return foreign
    profile = read_profile(file)
    timed = profile.get(architecture.id)
    known = measured_networks(folder).get(architecture.id, {})
    if LATENCY in known:
        value, why = known[LATENCY], known.get("doubtful", {}).get(LATENCY)
    elif timed is not None:
        value, why = timed.value, timed.doubtful
    else:
        return None
    header = profile.header
    return {
        "value_ms": value,
        "measured": True,
        **({"doubtful": why} if why else {}),
        "device": header.device.label,
        "torch": header.device.torch_version,
        "workload": header.workload.label,
    }


def _predicted_latency(folder: RunFolder, architecture: Architecture) -> dict[str, Any] | None:
    """Where latency is that of another device, from its profile."""
    if not folder.has(FRONT_FILE):
        return None
    front = read_front(folder)
    device = front.predicted_for.get(LATENCY)
    entry = next((one for one in front.entries if one.id == architecture.id), None)
    if device is None or entry is None or LATENCY not in entry.predicted:
        return None
    workload = ", ".join(f"{key} {value}" for key, value in _workload(folder).items())
    value = entry.predicted[LATENCY]
    return {"value_ms": value, "measured": False, "device": device, "workload": workload}


def _workload(folder: RunFolder) -> Mapping[str, Any]:
    return folder.spec.space.workload

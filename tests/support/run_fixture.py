"""A finished run folder whose numbers are made up and whose files are of the real form.

Nothing is trained or timed: losses and times follow simple formulas of a network's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latency.device import DeviceFingerprint
from latency.predictor import LatencyPredictor
from latency.timings import TimingHeader, open_timings
from latency.workload import Workload
from nas.objectives import LATENCY, OBJECTIVES, QUALITY
from nas.objectives.size import network_costs
from nas.request.presets import budget_for
from nas.request.spec import build_spec
from nas.run.folder import RunFolder, checksum
from nas.run.layout import SPEC_FILE, attention_file
from nas.run.omni_views import OmniViews, views_stage
from nas.run.stage_digest import stage_digest
from nas.search.evolution import Generation
from nas.search.front import FrontEntry, build_front, pick
from nas.search.pruning.cuts import Cut
from nas.search.pruning.evidence import Evidence, Lift
from nas.search.pruning.prune import Kept, PrunedSpace
from nas.search.ranking import PairwiseLinear, choose_ranker
from nas.stages.exchange import exchanged
from search_spaces.encoding import encode_features, feature_names
from search_spaces.files import write_atomically
from search_spaces.loading import dump_space, load_space
from search_spaces.measurement import Measurement
from search_spaces.omni import OmniLayer, OmniMap
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import sample_distinct

Floats = NDArray[np.float64]

OBSERVED, TIMED, POPULATION, VERIFIED = 40, 16, 12, 10
DEVICE = DeviceFingerprint("cpu", "Some processor", 2, 2, "2.13.0+cpu", "Linux-x86_64")
NUMBERS = {
    "observations": str(OBSERVED),
    "evolution.population": str(POPULATION),
    "evolution.generations": "2",
}


def empty_run(path: Path, **values: Any) -> RunFolder:
    """A run of the digits that has not begun."""
    space = load_space("digits")
    budget = budget_for(space, values.get("preset", "quick"), NUMBERS)
    given = {"space_toml": dump_space(space), "dataset": "digits", "budget": budget, "seed": 3}
    return RunFolder.create(path, build_spec(**(given | values)))


def finished_run(path: Path, **values: Any) -> RunFolder:
    """A run with every file that the report reads."""
    return fill(empty_run(path, **values))


_FILES: dict[str, dict[str, bytes]] = {}
"""What `fill` writes for a spec: rankers and predictors are fitted once in a process."""


def fill(folder: RunFolder) -> RunFolder:
    """Write every file that the report reads into a run of the digits that has not begun."""
    key = folder.spec.model_dump_json()
    if key not in _FILES:
        with TemporaryDirectory() as place:
            made = _made_up(RunFolder.create(Path(place) / "run", folder.spec)).path
            files = [file for file in made.rglob("*") if file.is_file() and file.name != SPEC_FILE]
            _FILES[key] = {str(file.relative_to(made)): file.read_bytes() for file in files}
    for name, content in _FILES[key].items():
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_bytes(content)
    return folder


def _made_up(folder: RunFolder) -> RunFolder:
    space = folder.spec.space
    rng = np.random.default_rng(folder.spec.seed)
    rows = sample_distinct(space, rng, OBSERVED)
    folder.write_json("data.json", {"dataset": "digits", "num_train": 1150, "num_valid": 287})
    _supernet(folder)
    _observe(folder, rows, rng)
    if folder.spec.needs_latency:
        _time(folder, rows[:TIMED])
    pruned = _prune(folder)
    _search(folder, pruned, np.random.default_rng([folder.spec.seed, 3]))
    for place, stage in enumerate(("declare", "supernet", "observe", "rank", "prune", "evolve")):
        folder.finish(stage, "digest", (), 1.5 * place)
    timed = ("latency",) if folder.spec.needs_latency else ()
    for stage in ("verify", "front", "exchange", *timed):
        folder.finish(stage, "digest", (), 75.0)
    return folder


def losses(space: SearchSpace, rows: Genotypes) -> Floats:
    """Larger networks are better."""
    return 3.0 / np.log(network_costs(space, rows)[:, 0]) - 0.2


def times(space: SearchSpace, rows: Genotypes) -> Floats:
    """Deeper networks are slower."""
    return 0.3 + 0.4 * space.depths(rows, "encoder") + 1e-7 * network_costs(space, rows)[:, 1]


def _supernet(folder: RunFolder) -> None:
    epochs = [{"epoch": n, "train_loss": 2.5 / n, "probe_loss": None, "tau": None} for n in (1, 2)]
    checks = [
        {"epoch": n, "train_loss": 2.5 / n, "probe_loss": 2.0 / n, "tau": 1 - 1 / n} for n in (3, 4)
    ]
    folder.write_json("supernet/history.json", epochs + checks)


def _observe(folder: RunFolder, rows: Genotypes, rng: np.random.Generator) -> None:
    space = folder.spec.space
    observed = losses(space, rows) + rng.normal(0, 0.005, len(rows))
    folder.append(
        "observations.jsonl",
        [
            {
                "id": network.id,
                "architecture": network.to_json(),
                "quality": loss,
                "valid_accuracy": 1 - loss,
            }
            for network, loss in zip(space.decode(rows), observed.tolist(), strict=True)
        ],
    )
    params, flops = network_costs(space, rows).T
    ranker, card = choose_ranker(
        encode_features(space, rows),
        observed,
        {"params": params, "flops": flops},
        rng,
        feature_names(space),
        [lambda: PairwiseLinear(0.1), lambda: PairwiseLinear(0.01)],
    )
    folder.write_json("ranker/ranker.json", ranker.to_json())
    folder.write_json("ranker/report_card.json", card.to_json())
    folder.write_json("ranker/importances.json", ranker.importances())


def _time(folder: RunFolder, rows: Genotypes) -> None:
    space = folder.spec.space
    path = folder.path / "latency" / "profile.jsonl"
    path.parent.mkdir()
    measured = times(space, rows)
    profile = open_timings(path, TimingHeader(DEVICE, Workload(32, 16), "settings"))
    values = [Measurement(LATENCY, value, unit="ms") for value in measured.tolist()]
    profile.record(list(zip(space.decode(rows), values, strict=True)))
    (path.parent / "profile.jsonl.lock").unlink(missing_ok=True)
    depth = space.depths(rows, "encoder")
    features = encode_features(space, rows)
    predictor = LatencyPredictor.fit(features, measured, baselines={"depth": depth})
    folder.write_json("latency/predictor.json", predictor.to_json())


def _prune(folder: RunFolder) -> SearchSpace:
    space = folder.spec.space
    layers = [n for n in space.slot("encoder.num_layers").choices if n != 4]
    smaller = space.restrict({"encoder.num_layers": layers, "encoder.1.ffn_dim": [16, 32, 64]})
    effects = tuple(0.1 * (n + 1) for n in range(len(folder.spec.objectives)))
    facts = Evidence(Lift(0.25, 0.01, 0.04, 0.2, 120), effects, -0.02, -1.5)
    share = smaller.size / space.size
    audit = PrunedSpace(
        smaller,
        (
            Cut("encoder.num_layers", 4, facts, 0.998, smaller.size * 2, 2 * share),
            Cut("encoder.1.ffn_dim", 128, facts, 1.002, smaller.size, share),
        ),
        (Kept("encoder.attention", "softmax", facts, "One of the best observed networks has it."),),
    )
    folder.write_json("pruning.json", audit.to_json())
    write_atomically(folder.path / "pruned_space.toml", dump_space(smaller))
    return smaller


def _search(folder: RunFolder, pruned: SearchSpace, rng: np.random.Generator) -> None:
    space, names = folder.spec.space, folder.spec.objectives
    drawn = sample_distinct(pruned, rng, 3 * POPULATION)
    guesses = _values(space, pruned.translate(drawn, space), 1.05)
    points = np.stack([guesses[name] for name in names], axis=1)
    for number, part in enumerate(np.array_split(np.arange(len(drawn)), 3)):
        generation = Generation(number, drawn[part], points[part], np.zeros(len(part)))
        folder.append("population.jsonl", [generation.to_json()])
    rows = pruned.translate(drawn[:VERIFIED], space)
    entries = _entries(folder, rows)
    lines = [entry.to_json() for entry in entries]
    folder.append("verification.jsonl", lines)
    objectives = [OBJECTIVES[name] for name in names]
    front = build_front(entries, objectives, [1e7] * len(names), folder.spec.limits)
    folder.write_json("pareto.json", front.to_json())
    picked = pick(front, folder.spec.pick)
    exchanges = exchanged(space, picked.architecture)
    values = _values(space, np.concatenate([one.row for one in exchanges]), 1.0)
    for number, one in enumerate(exchanges):
        there = {name: float(value[number]) for name, value in values.items()}
        line = {"of": picked.id, "slot": one.slot, "kind": one.kind, "values": there}
        folder.append("exchanges.jsonl", [line])
    retrain(folder, picked)


def _entries(folder: RunFolder, rows: Genotypes) -> list[FrontEntry]:
    space = folder.spec.space
    measured, predicted = _values(space, rows, 1.0), _values(space, rows, 1.05)
    names = [QUALITY, "params", "flops", *([LATENCY] if folder.spec.needs_latency else [])]
    guessed = [name for name in names if name in (QUALITY, LATENCY)]
    return [
        FrontEntry(
            network.id,
            network,
            {name: float(measured[name][i]) for name in names} | {"valid_accuracy": 0.9},
            {name: float(predicted[name][i]) for name in guessed},
        )
        for i, network in enumerate(space.decode(rows))
    ]


def _values(space: SearchSpace, rows: Genotypes, factor: float) -> dict[str, Floats]:
    params, flops = network_costs(space, rows).T
    quality, latency = factor * losses(space, rows), factor * times(space, rows)
    return {QUALITY: quality, LATENCY: latency, "params": params, "flops": flops}


def retrain(folder: RunFolder, entry: FrontEntry) -> None:
    """Pretend that a network was trained from scratch."""
    result = {
        "schema": 2,
        "id": entry.id,
        "architecture": entry.architecture.to_json(),
        "task": folder.spec.space.task,
        "dataset": folder.spec.dataset,
        "test_accuracy": 0.975,
        "test_loss": 0.07,
        "valid_accuracy": 0.98,
        "valid_loss": 0.0625,
        "epochs": 60,
        "seed": folder.spec.seed,
        "params": int(entry.measured["params"]),
    }
    folder.write_json(f"retrained/{entry.id}/result.json", result)
    folder.finish(f"retrain-{entry.id}", "digest", (), 30.0)


def look_into(folder: RunFolder, identity: str) -> None:
    """Pretend that a network's omni layers were looked into."""
    thirds = (0.5, 0.3, 0.2)
    layer = OmniLayer(
        "encoder", 3, (0, 1, 2), ((thirds,) * 3, (thirds[::-1],) * 3), (0.2, 0.1, 0.7)
    )
    patches = (0.01,) * 16
    found = OmniMap(0, 3, (patches,) * 3, ((0.2,) * 16, (0.1,) * 16, (0.7,) * 16))
    views = OmniViews(identity, "inherited", 64, (layer,), (found,))
    folder.write_json(attention_file(identity), views.to_json())
    stage = views_stage(folder, identity)
    folder.finish(stage.name, stage_digest(folder, stage), stage.outputs, 2.0)


def export(folder: RunFolder, identity: str, form: str) -> None:
    """Pretend that a network was exported."""
    where = folder.path / "export" / identity / form
    where.mkdir(parents=True)
    (where / "model.safetensors").write_bytes(b"weights")
    sums = {"model.safetensors": checksum(where / "model.safetensors")}
    folder.write_json(f"export/{identity}/{form}/checksums.json", {"sha256": sums})


def rewrite(folder: RunFolder, name: str, path: Sequence[str | int], value: Any) -> None:
    """Change one value deep inside a JSON file of a run."""
    data = folder.read_json(name)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    folder.write_json(name, data)

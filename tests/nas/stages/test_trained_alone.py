"""Searches without a supernet: each network is trained alone for a while before it is observed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.testing import assert_close
from typer.testing import CliRunner

from nas.console.app import app
from nas.executors.base import ExecutorSettings
from nas.report.page import render
from nas.report.words import observed_how
from nas.request.presets import Budget
from nas.request.spec import SearchSpec, Start
from nas.results.export import ExportRequest, export_network
from nas.results.reader import read_contents
from nas.run.evaluator import Evaluator, open_evaluator
from nas.run.folder import RunFolder
from nas.run.network_training import new_network, short_settings, trained_alone, trainer_of
from nas.run.opened import OpenedRun
from nas.run.stages import search_stages
from nas.stages.attention import measure_views
from nas.stages.pipeline import run_search
from search_spaces.architecture import Architecture
from search_spaces.errors import DivergedError, UsageError
from search_spaces.variation import smallest
from supernet.tasks.evaluation import evaluate
from tests.nas.run.test_omni_views import DEEP
from tests.support.pipeline_cases import done_twice, finished, results, spec_of, tiny, tree, work

UPDATES = 5
ALONE = {"own_updates": str(UPDATES)}
OBSERVED = "observations.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A search that has ended."""
    return finished(tmp_path_factory.mktemp("alone") / "run", numbers=ALONE)


def networks(folder: RunFolder) -> list[Architecture]:
    return [Architecture.from_json(x["architecture"]) for x in folder.read_journal(OBSERVED)]


def with_budget(spec: SearchSpec, **changes: Any) -> SearchSpec:
    return spec.model_copy(update={"budget": spec.budget.model_copy(update=changes)})


# -- the request ----------------------------------------------------------------------------------


def test_requests_without_it_have_the_digest_of_older_versions(tmp_path: Path) -> None:
    old, new = spec_of(tmp_path / "old"), spec_of(tmp_path / "new", numbers=ALONE)
    assert old.budget.own_updates == 0 and not old.trains_alone and new.trains_alone
    values = old.model_dump(mode="json")
    del values["budget"]["own_updates"]
    assert type(old)(**values).digest == old.digest != new.digest


def test_several_seeds_are_for_networks_trained_alone(tmp_path: Path) -> None:
    twice = spec_of(tmp_path / "twice", numbers={**ALONE, "own_seeds": "2"})
    once = spec_of(tmp_path / "once", numbers={**ALONE, "own_seeds": "1"})
    values = once.model_dump(mode="json")
    del values["budget"]["own_seeds"]
    assert type(once)(**values).digest == once.digest != twice.digest
    with pytest.raises(UsageError, match="own_seeds is 2, but no network is trained alone .* set"):
        spec_of(tmp_path / "none", numbers={"own_seeds": "2"})


def test_checkpoints_are_inherited(tmp_path: Path) -> None:
    start = Start(folder="bert", digest="0")
    assert spec_of(tmp_path / "old", start=start).start == start
    with pytest.raises(UsageError, match="own_updates is 5, .* inherits its weights: set own_upd"):
        spec_of(tmp_path / "new", numbers=ALONE, start=start)


def test_such_a_search_has_all_stages_but_the_supernet(tmp_path: Path) -> None:
    old, new = spec_of(tmp_path / "old"), spec_of(tmp_path / "new", numbers=ALONE)
    names = [stage.name for stage in search_stages(old) if stage.name != "supernet"]
    assert [stage.name for stage in search_stages(new)] == names


# -- the training ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "retrain",
    [
        {"epochs": 1},
        {"epochs": 100, "batch_size": 8, "average_last": 2},
        {"epoch_updates": 2, "check_every": 1, "ema_decay": 0.5},
        {"max_updates": 2, "checkpoint_updates": 1},
    ],
)
def test_the_training_is_a_retraining_of_so_many_updates(
    retrain: dict[str, Any], tmp_path: Path
) -> None:
    spec = spec_of(tmp_path / "run", numbers=ALONE)
    spec = with_budget(spec, retrain=replace(spec.budget.retrain, **retrain))
    run = OpenedRun(RunFolder.create(tmp_path / "run", spec))
    (network,) = run.space.decode(smallest(run.space))
    settings = short_settings(spec)
    trainer = trainer_of(new_network(spec, network, settings), spec, run.task, settings)
    for _ in trainer.run():
        pass
    assert trainer._updates == trainer._total == UPDATES
    alone = trained_alone(spec, run.task, network).state_dict()
    assert_close(alone, trainer.model.state_dict(), rtol=0, atol=0)


def test_what_is_observed_is_the_network_after_it(run: RunFolder) -> None:
    opened = OpenedRun(RunFolder.open(run.path))
    line, network = run.read_journal(OBSERVED)[0], networks(run)[0]
    model = trained_alone(run.spec, opened.quick_task, network)
    found = evaluate(opened.quick_task, model, network, opened.quick_task.valid)
    assert (line["quality"], line["valid_accuracy"]) == (found.loss, found.accuracy)


def test_what_is_observed_with_several_seeds_is_their_mean(run: RunFolder) -> None:
    opened = OpenedRun(RunFolder.open(run.path))
    task, network = opened.quick_task, networks(run)[0]
    spec = with_budget(run.spec, own_seeds=3)
    models = [trained_alone(spec, task, network, number) for number in range(3)]
    losses = [evaluate(task, model, network, task.valid).loss for model in models]
    assert losses[0] == run.read_journal(OBSERVED)[0]["quality"]
    assert len(set(losses)) == 3
    # Not a neighbour's seed, which a retraining may have.
    near = trained_alone(spec.model_copy(update={"seed": spec.seed + 1}), task, network)
    assert evaluate(task, near, network, task.valid).loss not in losses
    found = Evaluator(spec, task, None).quality(network)
    assert found["quality"] == pytest.approx(sum(losses) / 3, rel=1e-12)
    told = observed_how(replace(read_contents(run), spec=spec))
    assert told == f"after {UPDATES} updates of training alone, as the mean of 3 seeds"


def test_more_updates_learn_more(run: RunFolder) -> None:
    longer = with_budget(run.spec, own_updates=40 * UPDATES)
    opened = OpenedRun(RunFolder.open(run.path))
    network = networks(run)[0]
    model = trained_alone(longer, opened.quick_task, network)
    found = evaluate(opened.quick_task, model, network, opened.quick_task.valid)
    assert found.loss < run.read_journal(OBSERVED)[0]["quality"]


def test_a_worker_without_the_folder_finds_the_same(run: RunFolder) -> None:
    opened = OpenedRun(RunFolder.open(run.path))
    assert opened.weights() is None
    evaluator = open_evaluator(run.spec, opened.data_digest, None)
    line, network = run.read_journal(OBSERVED)[1], networks(run)[1]
    assert evaluator.quality(network) == {
        name: line[name] for name in line if name not in ("id", "architecture")
    }


def test_trainings_that_diverge_are_failures_and_say_what_to_lower(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "run", numbers=ALONE)
    wild = replace(spec.budget.retrain, learning_rate=1e30, warmup_share=0.0)
    run = RunFolder.create(tmp_path / "run", with_budget(spec, retrain=wild))
    with pytest.raises(DivergedError, match="short trainings diverge: lower retrain.learning_rate"):
        work(run)
    assert not (run.path / OBSERVED).exists()


# -- the search -----------------------------------------------------------------------------------


def test_the_search_ends_as_others_do(run: RunFolder) -> None:
    assert not (run.path / "supernet").exists()
    assert run.record("supernet") is None and run.record("exchange") is not None
    assert list(run.path.glob("retrained/*/result.json")) and done_twice(run) == []
    before = tree(run.path)
    work(RunFolder.open(run.path))
    after = tree(run.path)
    assert {name for name in after if before.get(name) != after[name]} <= {
        "events.jsonl",
        "report.html",
        "optuna.journal",
    }


def test_it_ends_alike_when_cut_short(run: RunFolder, tmp_path: Path) -> None:
    cut, seen = tiny(tmp_path / "run", numbers=ALONE), 0
    with closing(run_search(cut)) as stream:  # type: ignore[type-var]
        while seen < 3:
            seen += type(next(stream)).__name__ == "ArchitectureMeasured"
    work(RunFolder.open(cut.path))
    assert results(cut) == results(run) and done_twice(cut) == []


@pytest.mark.slow
@pytest.mark.ray
def test_it_ends_alike_through_ray(run: RunFolder, tmp_path: Path, ray_session: None) -> None:
    far = tiny(tmp_path / "run", numbers=ALONE)
    list(run_search(far, ExecutorSettings("ray", workers=2)))
    assert results(far) == results(run)


# -- what is told of it ---------------------------------------------------------------------------


def test_the_report_tells_of_no_supernet(run: RunFolder) -> None:
    page = render(read_contents(run))
    told = f"after {UPDATES} updates of training alone"
    assert page.count(told) >= 3 and "inherited" not in page
    assert "Training before observing" in page and "Train the supernet" not in page
    assert "This run has no supernet" in page and 'id="training-' not in page


def test_weights_that_nobody_inherits_cannot_be_exported(run: RunFolder, tmp_path: Path) -> None:
    told = f"alone for {UPDATES} updates before it was observed.* nas retrain .* --pick"
    network = networks(run)[0].id
    request = ExportRequest("safetensors", network, inherited=True, out=tmp_path / "out")
    with pytest.raises(UsageError, match=told):
        export_network(run, request)


def test_omni_layers_need_weights_that_were_kept(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", DEEP, numbers=ALONE)
    (trained,) = (path.parent.name for path in run.path.glob("retrained/*/result.json"))
    other = next(one["id"] for one in run.read_json("pareto.json")["front"] if one["id"] != trained)
    with pytest.raises(UsageError, match="no supernet to inherit weights from"):
        list(measure_views(run, other))


def test_nothing_is_estimated_of_a_supernet_that_is_not_trained(tmp_path: Path) -> None:
    text = spec_of(tmp_path / "run").space_toml
    file = tmp_path / "space.toml"
    file.write_text(f"{text}\n[presets.quick]\nown_updates = 7\n", encoding="utf-8")
    told = CliRunner().invoke(app, ["space", "show", str(file)]).stdout
    assert "7 updates each" in told
    failed = CliRunner().invoke(app, ["space", "estimate", str(file)])
    assert failed.exit_code != 0 and "trains no supernet" in failed.output


def test_the_default_is_a_supernet() -> None:
    assert Budget().own_updates == 0

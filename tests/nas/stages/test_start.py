"""Searches that begin with a checkpoint: request, inheritance, distillation, fine-tuning."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from nas.console.app import app
from nas.console.commands.results import final_lines
from nas.console.commands.search import Here
from nas.executors.base import ExecutorSettings
from nas.executors.local import LocalExecutor
from nas.executors.retraining.network import network_trainer
from nas.objectives.base import base_workload
from nas.objectives.cache import contexts_of
from nas.report.checkpoint_section import checkpoint_section, state_mb
from nas.report.exchange_section import exchange_section
from nas.request.resolve import resolve
from nas.request.spec import SearchRequest
from nas.results.comparison import ComparedRun, compare_runs
from nas.results.contents import DISTANCES
from nas.results.reader import read_contents
from nas.run.checkpoint import check_classes, check_tokenizer, starting_point
from nas.run.duration import DISTIL_UPDATE, read_duration
from nas.run.evaluator import open_evaluator
from nas.run.events import Progress
from nas.run.folder import RunFolder
from nas.run.layer_distillation import inputs_of, layers_left, taught, teach
from nas.run.network_training import new_network, trainer_of
from nas.run.opened import OpenedRun
from nas.run.supernet_training import supernet_trainer
from nas.run.training_memory import network_need, supernet_need
from nas.search.front import pick, read_front
from nas.stages import declare, distil, inherit, telling
from nas.stages.base import Run
from nas.stages.calibration import calibrate
from nas.stages.feasibility import check_quality
from nas.stages.pipeline import run_search
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import dump_space
from search_spaces.variation import largest
from service.api.run_cache import read_run
from service.dashboard.compare_views import fronts_drawing
from service.dashboard.run_views import evidence
from supernet.inheritance.local import JUDGED_BATCHES
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.pretrained.space import space_around
from supernet.training.checkpoint import CheckpointFolder, load, save
from tests.nas.stages.test_pipeline_recall import check
from tests.support import start_cases
from tests.support.export_cases import hub_without_net
from tests.support.pipeline_cases import start, work
from tests.support.pretrained_cases import change_config, write_model
from tests.support.tokenizer_cases import byte_level, prepared_stream

pytestmark = pytest.mark.export

NUMBERS = {"threads": 1, **start_cases.NUMBERS}


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def llama(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a tokenizer."""
    return start_cases.write_llama(hub, tmp_path_factory.mktemp("checkpoints") / "llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepared_stream(folder, byte_level(marked=True))
    return folder / "data"


def asked(llama: Path, data: Path, **more: Any) -> SearchRequest:
    given = {"objectives": ("quality", "kv_cache_mb"), "settings": NUMBERS, "preset": "smoke"}
    return SearchRequest(**{"start": str(llama), "data": str(data), **given, **more})


@pytest.fixture(scope="module")
def run(llama: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A whole search, as the command does it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = [f"--set={name}={value}" for name, value in NUMBERS.items()]
    given = ["search", "--from", str(llama), "--data", str(data), "--preset", "smoke", *options]
    more = ["--objectives", "quality,kv_cache_mb", "--out", str(folder), "--quiet"]
    done = CliRunner().invoke(app, [*given, *more])
    assert done.exit_code == 0, done.output
    return RunFolder.open(folder)


def test_weights_that_are_no_numbers_are_refused_before_anything_is_done(
    llama: Path, data: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(llama, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    given = ["search", "--from", str(broken), "--data", str(data), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "model.norm.weight holds NaN or infinity" in done.stderr
    assert not (tmp_path / "run").exists()


def test_without_a_space_the_one_around_it_is_searched(llama: Path, data: Path) -> None:
    found = resolve(asked(llama, data), Here())
    assert found.spec.retrain == 1  # no neighbour in quality is as much cheaper
    assert found.space.digest == space_around(read_checkpoint(llama)).digest
    assert found.spec.start is not None and found.spec.start.folder == str(llama)


def test_a_tied_output_that_differs_is_told_of_the_request(
    llama: Path, data: Path, tmp_path: Path
) -> None:
    assert read_checkpoint(llama).settings.tied_output is False
    tied = shutil.copytree(llama, tmp_path / "tied")
    change_config(tied, tie_word_embeddings=True)
    with pytest.raises(DataError, match="its lm_head.weight differs from its embeddings") as told:
        resolve(asked(tied, data), Here())
    assert told.value.field == "start"


def test_a_space_of_ones_own_has_to_fit(llama: Path, data: Path) -> None:
    text = dump_space(space_around(read_checkpoint(llama)))
    resolve(asked(llama, data, space_toml=text), Here())
    other = text.replace("ffn_bias = false", "ffn_bias = true")
    assert other != text
    with pytest.raises(UsageError, match="other settings: ffn_bias; nas space from"):
        resolve(asked(llama, data, space_toml=other), Here())
    with pytest.raises(UsageError, match="cannot inherit"):
        resolve(asked(llama, data, space="digits"), Here())
    narrower = re.sub(r"embed_dim = \[\s*(\d+),?\s*\]", r"embed_dim = [8, \1]", text)
    assert narrower != text
    with pytest.raises(UsageError, match=r"embed_dim has smaller choices"):
        resolve(asked(llama, data, space_toml=narrower), Here())


@pytest.mark.parametrize(
    "choices", [{"decoder.self_attention": ["linear"]}, {"decoder.num_layers": [2]}]
)
def test_the_checkpoints_own_network_is_not_restricted_away(
    llama: Path, data: Path, choices: dict[str, list[Any]]
) -> None:
    with pytest.raises(UsageError, match="that are left cannot inherit from") as told:
        resolve(asked(llama, data, restrict=choices), Here())
    assert "own network is not among them; leave its own choices in" in str(told.value)
    assert told.value.field == "restrict"


def test_data_of_another_tokenizer_are_refused(llama: Path, data: Path, tmp_path: Path) -> None:
    begun = starting_point(llama).start
    check_tokenizer(data, begun, "language_modelling")
    prepared_stream(tmp_path, byte_level(marked=False))
    with pytest.raises(DataError, match="another tokenizer than that of the checkpoint") as told:
        check_tokenizer(tmp_path / "data", begun, "language_modelling")
    assert str(told.value).endswith(f"anew with nas data prepare --tokenizer {llama}")
    check_tokenizer(tmp_path / "data", begun, "classification")  # for which others have their words


def test_of_a_checkpoint_without_a_tokenizer_the_data_may_not_have_more_tokens(
    llama: Path, data: Path, tmp_path: Path
) -> None:
    """No vocabulary that is learnt is its own, whatever its size."""
    bare = shutil.copytree(llama, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    begun = starting_point(bare).start
    check_tokenizer(data, begun, "language_modelling")
    larger = byte_level(marked=True)
    larger.add_special_tokens([f"<{number}>" for number in range(99)])
    prepared_stream(tmp_path, larger)
    with pytest.raises(
        DataError, match="has no tokenizer.json to prepare data with: fetch"
    ) as told:
        check_tokenizer(tmp_path / "data", begun, "language_modelling")
    assert str(told.value).endswith(f"nas data prepare --tokenizer {bare}")
    assert "vocab" not in str(told.value)


def test_another_tokenizer_is_told_before_a_vocabulary_that_is_too_large(
    llama: Path, tmp_path: Path
) -> None:
    larger = byte_level(marked=True)
    larger.add_special_tokens([f"<{number}>" for number in range(99)])
    prepared_stream(tmp_path, larger)
    spec = resolve(asked(llama, tmp_path / "data"), Here()).spec
    run = RunFolder.create(tmp_path / "run", spec)
    with pytest.raises(DataError, match="another tokenizer than that of the checkpoint llama"):
        list(declare.work(Run(run)))


def test_classes_in_another_order_than_the_checkpoints_are_refused(
    hub: Any, tmp_path: Path
) -> None:
    names = ["ant", "bee", "cat", "dog", "elk"]
    folder = write_model(hub, tmp_path / "vit", "vit")
    change_config(folder, id2label={str(n): name.upper() for n, name in enumerate(names)})
    begun = starting_point(folder).start
    check_classes(names, begun)
    check_classes(["1", "2", "3", "4", "5"], begun)
    with pytest.raises(DataError, match="class 1 is 'dog' in the data and 'bee' in the checkpoint"):
        check_classes(["ant", "dog", "cat", "bee", "elk"], begun)


def test_a_distillation_that_was_killed_behind_its_last_step_is_done(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Run(RunFolder.open(shutil.copytree(run.path, tmp_path / "run")))
    monkeypatch.setattr(LocalExecutor, "distil", None)
    assert list(distil.work(again)) == []


def test_a_search_needs_a_space_or_what_one_is_made_from(data: Path) -> None:
    assert SearchRequest(data=str(data)).makes_space
    with pytest.raises(ValueError, match="no space is given"):
        SearchRequest(data="synthetic")


def test_what_is_no_checkpoint_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    given = ["search", "--from", str(tmp_path / "none"), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 2 and "is no folder" in done.output
    assert not (tmp_path / "run").exists()


def test_the_search_inherits_distils_and_ends(run: RunFolder) -> None:
    names = [name for name in run.finished() if not name.startswith("retrain-")]
    assert {"inherit", "distil", "exchange"} <= set(names)
    baseline = run.read_json("inherited/baseline.json")
    assert baseline["values"]["quality"] > 0
    assert set(run.read_json("distilled/errors.json")) >= {"0.linear", "2.linear"}
    observed = run.read_journal("observations.jsonl")
    assert baseline["id"] in {line["id"] for line in observed}


def test_the_report_knows_the_checkpoint(run: RunFolder, llama: Path) -> None:
    contents = read_contents(run)
    assert contents.origin is not None and contents.picked is not None
    network = read_checkpoint(llama).architecture
    assert contents.origin.entry.id == network.id and contents.origin.name == "llama"
    assert contents.origin.entry.measured["kv_cache_mb"] > 0
    assert sorted(contents.origin.layer_order) == [0, 1, 2]
    page = (run.path / "report.html").read_text()
    assert 'id="checkpoint"' in page and "taught by it" in page
    stack = contents.picked.architecture.decoder
    assert stack is not None and len(contents.silenced) == len(stack.layers)
    lengths = contexts_of(contents.space)
    states = [state_mb(contents, network, length) for length in lengths]
    assert states == sorted(states) and lengths[-1] == contents.space.model.max_length - 1
    context = base_workload(contents.space).positions_read
    known = contents.origin.entry.measured["kv_cache_mb"]
    assert states[lengths.index(context)] == known
    assert f"after {context} positions, MB" in page and "live allocation" in page
    (tuned,) = (one for one in contents.retrained if one.id == contents.picked.id)
    assert tuned.by_distance.keys() == contents.origin.by_distance.keys() == {*DISTANCES}
    stretches = contents.origin.by_distance["positions"]
    tokens = sum(one.tokens for one in stretches)
    mean = sum(one.tokens * one.nats for one in stretches) / tokens
    # The checkpoint as it came, and trained on as long, which are the same network.
    own = next(one for one in contents.retrained if one.id == network.id)
    for named in (contents.origin.by_distance, own.by_distance):
        assert all(f">{one.nats:.3f}</td>" in page for one in named["positions"])
    loss = contents.origin.entry.measured["quality"]
    assert mean == pytest.approx(loss, rel=1e-5)
    assert "how many tokens ago the pair" in page and "over 0" not in page
    for file in run.path.glob("retrained/*/result.json"):
        check("retrained", json.loads(file.read_text()))
    # The job's page of a service shows the same sections.
    shown = evidence(read_run(run))
    for part in (checkpoint_section(contents), exchange_section(contents)):
        assert part and part in page and part in shown
    beside = fronts_drawing(compare_runs([ComparedRun("first", read_run(run).contents, None)] * 2))
    assert "1. its checkpoint" in beside and "2. its checkpoint" in beside


def test_the_result_tells_of_the_checkpoint_from_which_a_saving_counts(run: RunFolder) -> None:
    check("pareto", run.read_json("pareto.json"))
    front, baseline = read_front(run), run.read_json("inherited/baseline.json")
    own = front.checkpoint
    assert own is not None and own.id == baseline["id"]
    assert own.measured["quality"] == baseline["values"]["quality"]
    assert run.read_journal("verification.jsonl")[0]["id"] == own.id
    picked = pick(front, run.spec.pick)
    assert run.spec.pick == "1.5x"
    assert picked.measured["kv_cache_mb"] * 1.5 <= own.measured["kv_cache_mb"]
    page = (run.path / "report.html").read_text()
    assert "times less than the checkpoint" in page
    # The command and the page say what became of it.
    told = next(line for line in final_lines(run) if "search began with" in line).strip()
    result = run.read_json(f"retrained/{picked.id}/result.json")
    begun = f"The search began with a checkpoint ({own.id}): the winner's "
    assert told.startswith(begun) and told.endswith(" of it.")
    assert f"loss is {result['valid_loss']:.4g} where its own is" in told
    assert told.removeprefix(begun) in page
    # It was trained on as long, so that what the texts teach is not taken for the search's.
    (beside,) = front.baselines
    assert (beside.entry.id, beside.roles, beside.plain) == (own.id, ("checkpoint",), False)
    assert beside.entry.measured["kv_cache_mb"] == own.measured["kv_cache_mb"]
    its = run.read_json(f"retrained/{own.id}/result.json")
    assert its["epochs"] == result["epochs"]
    told = next(line for line in final_lines(run) if "trained on as long" in line)
    assert "Against the checkpoint" in told and told.endswith(" of the cache.")


def test_its_distillation_is_told_before_and_what_comes_before_it_named(run: RunFolder) -> None:
    told = read_duration(run)
    assert told is not None and not told.reason
    seconds = {one.stage: one.seconds for one in told.stages}
    assert seconds["inherit"] is None and (seconds["distil"] or 0) > 0
    ticks = itertools.count()
    found = calibrate(OpenedRun(run), [DISTIL_UPDATE], lambda: float(next(ticks)))
    assert found == {DISTIL_UPDATE: 1.0}
    updates = NUMBERS["distil.updates"] + JUDGED_BATCHES
    assert seconds["distil"] == pytest.approx(updates * told.calibration[DISTIL_UPDATE])
    shared = distil.plan(telling.asked(Run(run))).seconds(told.calibration, workers=2)
    assert shared is not None and 0.7 < shared / seconds["distil"] < 0.9


def test_the_first_weights_are_the_checkpoint(run: RunFolder) -> None:
    opened = OpenedRun(run)
    assert opened.checkpoint is not None and opened.teacher is not None
    weights = load(run.path / "inherited/weights.pt")["weights"]
    opened.supernet.load_state_dict(weights)
    tokens = torch.arange(20)[None]
    network = opened.checkpoint.architecture
    with torch.no_grad():
        told = opened.supernet(tokens, network)
        right = opened.teacher.network(tokens, network)
    assert torch.allclose(told, right, atol=1e-5)


def test_a_network_is_trained_from_its_share_of_the_supernet(run: RunFolder) -> None:
    """After 6 updates at a small rate the winner is still near what it inherited."""
    picked = pick(read_front(run), run.spec.pick).id
    trained = load(run.path / f"retrained/{picked}/weights.pt")["model"]
    inherited = OpenedRun(run).supernet.state_dict()
    name = "decoder.blocks.0.ffn_norm.weight"
    assert (trained[name] - inherited[name]).abs().max() < 0.05
    assert run.read_json(f"retrained/{picked}/result.json")["task"] == "language_modelling"


@pytest.mark.parametrize("spoilt", ["supernet/last.pt", "distilled/weights.pt"])
def test_a_network_begins_with_the_better_of_two(
    run: RunFolder, tmp_path: Path, spoilt: str
) -> None:
    """Whichever weights are spoilt, those before the supernet's training or after, the others."""
    shutil.copytree(run.path, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    opened = OpenedRun(folder)
    before, after = opened.first_weights(), dict(opened.supernet.state_dict())
    kept = before if spoilt == "supernet/last.pt" else after
    content = load(folder.path / spoilt)
    weights = {
        key: 20 * value + torch.linspace(-9, 9, value.shape[-1])
        if value.is_floating_point()
        else value
        for key, value in content["weights"].items()
    }
    save(folder.path / spoilt, content | {"weights": weights})
    entry = pick(read_front(folder), "best")
    checkpoints = CheckpointFolder(tmp_path / "none", "digest")
    settings = folder.spec.budget.retrain
    network, _ = network_trainer(OpenedRun(folder), entry, settings, checkpoints)
    name = "decoder.blocks.0.ffn_norm.weight"
    mine = network.network.state_dict()[name]
    assert torch.equal(mine, kept[name][: len(mine)])


def test_no_training_begins_with_the_batches_of_another(run: RunFolder, tmp_path: Path) -> None:
    """Its weights come from there, so that it would learn the same texts again."""
    opened = OpenedRun(run)
    spec, task, entry = opened.spec, opened.quick_task, pick(read_front(run), "best")
    checkpoints = CheckpointFolder(tmp_path / "none", "digest")
    _, tuning = network_trainer(opened, entry, spec.budget.retrain, checkpoints)
    firsts = [inputs_of(opened, "cpu")(0)]
    for trainer in (supernet_trainer(opened), tuning):
        stream = task.batches(spec.budget.supernet, seed=trainer._seed, epoch=0, device="cpu")
        firsts.append(task.inputs(next(iter(stream))))
    assert not any(torch.equal(one, two) for one, two in itertools.combinations(firsts, 2))


def test_a_checkpoints_first_weights_are_drawn_by_the_seed_of_the_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SeenError(Exception):
        """What the weights were to be drawn by."""

    def seen(*given: Any) -> None:
        raise SeenError(given[-1])

    monkeypatch.setattr(inherit, "inherit", seen)
    other = RunFolder(run.path, run.spec.model_copy(update={"seed": 7}))
    with pytest.raises(SeenError, match="^7$"):
        list(inherit.work(Run(other)))


def test_a_checkpoint_that_changed_is_refused(run: RunFolder, llama: Path, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    shutil.copytree(llama, tmp_path / "llama")
    spec = json.loads((tmp_path / "run/spec.json").read_text())
    folder = RunFolder.open(tmp_path / "run")
    assert folder.spec.start is not None and spec["start"]["folder"] == str(llama)
    change_config(tmp_path / "llama", rms_norm_eps=1e-3)
    start = folder.spec.start.model_copy(update={"folder": str(tmp_path / "llama")})
    changed = RunFolder(folder.path, folder.spec.model_copy(update={"start": start}))
    with pytest.raises(DataError, match="has changed since this run began"):
        _ = OpenedRun(changed).checkpoint


def test_what_it_needs_of_a_card_is_told_with_the_rest(run: RunFolder) -> None:
    opened = OpenedRun(run)
    budget, teacher = opened.spec.budget, opened.teacher
    assert teacher is not None
    weights = 4 * sum(parameter.numel() for parameter in teacher.parameters())
    (network,) = opened.space.decode(largest(opened.space))
    made = new_network(opened.spec, network, budget.retrain)
    for training, alone in (
        (supernet_trainer(opened), supernet_need(opened.space, budget.supernet)),
        (
            trainer_of(made, opened.spec, opened.task, budget.retrain, None, teacher),
            network_need(opened.spec, network, budget.retrain),
        ),
    ):
        assert training._need is not None
        needed = training._need.costs().weight_bytes
        assert needed == alone.costs().weight_bytes + weights


def begun(path: Path, llama: Path, data: Path) -> RunFolder:
    """A request like that of `run`, not worked on, that distils beyond its first checkpoint."""
    numbers = {**NUMBERS, "distil.updates": 30}
    found = resolve(asked(llama, data, settings=numbers), Here())
    return RunFolder.create(path, found.spec)


def results(folder: RunFolder) -> dict[str, bytes]:
    """What a search ends with."""
    names = ("pareto.json", "observations.jsonl", "exchanges.jsonl", "distilled/errors.json")
    trained = sorted(folder.path.glob("retrained/*/result.json"))
    files = [*(folder.path / name for name in names), *trained]
    return {str(file.relative_to(folder.path)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole(llama: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Never stopped."""
    folder = begun(tmp_path_factory.mktemp("whole") / "run", llama, data)
    work(folder)
    return folder


def test_stopped_again_and_again_it_goes_on_to_the_same_end(
    whole: RunFolder, llama: Path, data: Path, tmp_path: Path
) -> None:
    folder = begun(tmp_path / "run", llama, data)
    for stage, steps in (("inherit", 2), ("distil", 27), ("supernet", 1), ("retrain-", 1)):
        seen = 0
        for event in run_search(RunFolder.open(folder.path)):
            seen += isinstance(event, Progress) and event.stage.startswith(stage)
            if seen == steps:
                break
        assert seen == steps and not list(folder.path.glob("retrained/*/result.json"))
    work(RunFolder.open(folder.path))
    assert results(folder) == results(whole)


def test_layers_may_learn_in_parts_and_at_different_times(whole: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    run = OpenedRun(RunFolder.open(tmp_path / "run"))
    assert layers_left(run) == [0, 1, 2]
    assert any(report.update == 27 for report in teach(run, [0, 2], "cpu"))  # and is stopped there
    assert layers_left(run) == [0, 1, 2]
    first = next(teach(run, [0, 2], "cpu"))
    assert first.update == 26
    list(teach(run, [0, 2], "cpu"))
    assert layers_left(run) == [1]
    assert [report.update for report in LocalExecutor().distil(run)] == list(range(1, 31))
    assert layers_left(run) == [] == list(LocalExecutor().distil(run))
    weights, errors = taught(run)
    right = load(whole.path / "distilled/weights.pt")["weights"]
    assert weights.keys() == right.keys()
    assert all(torch.equal(one, right[name]) for name, one in weights.items())
    assert [*errors.items()] == [*whole.read_json("distilled/errors.json").items()]


def test_layers_that_were_begun_by_several_go_on_in_one_process(
    whole: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    run = OpenedRun(RunFolder.open(tmp_path / "run"))
    for layers in ([0, 2], [1]):
        assert any(report.update == 27 for report in teach(run, layers, "cpu"))
    told = [(report.update, report.updates) for report in LocalExecutor().distil(run)]
    assert told == [(update, 60) for update in (*range(26, 31), *range(56, 61))]
    assert layers_left(run) == []


def test_quality_may_be_the_distance_to_the_checkpoint(
    llama: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAS_CACHE_DIR", str(tmp_path / "cache"))
    found = resolve(asked(llama, data, quality="kl"), Here())
    folder = RunFolder.create(tmp_path / "run", found.spec)
    for event in run_search(folder):
        if isinstance(event, Progress) and event.stage == "observe" and event.done == 3:
            break
    work(RunFolder.open(folder.path))
    baseline = folder.read_json("inherited/baseline.json")["values"]
    assert baseline["quality"] == baseline["valid_kl"] == 0.0 < baseline["valid_loss"]
    front = read_front(folder)
    assert front.objectives[0].metric == "valid_kl"
    others = [one for one in front.entries if one.id != read_checkpoint(llama).architecture.id]
    assert others and all(one.measured["quality"] > 0 for one in others)
    check("pareto", folder.read_json("pareto.json"))
    assert folder.spec.kept_by.name == "kl"
    (trained,) = folder.path.glob("retrained/*/result.json")
    scores = json.loads(trained.read_text())
    check("retrained", scores)
    assert scores["valid_kl"] > 0 and scores["test_kl"] > 0
    page = (folder.path / "report.html").read_text()
    assert "divergence from the checkpoint" in page and "--quality kl" in page
    # What a worker elsewhere finds, which reads the checkpoint itself.
    opened = OpenedRun(folder)
    away = open_evaluator(folder.spec, opened.data_digest, opened.weights())
    line = folder.read_journal("observations.jsonl")[1]
    network = Architecture.from_json(line["architecture"])
    assert away.quality(network) == opened.quality(network)
    assert away.quality(network)["quality"] == line["quality"]


def test_without_a_checkpoint_there_is_no_distance_to_it(data: Path, tmp_path: Path) -> None:
    given = {"space": "digits", "quality": "kl", "preset": "smoke"}
    spec = resolve(SearchRequest(**given), Here()).spec
    with pytest.raises(UsageError, match="--quality kl is for language modelling"):
        check_quality(spec)
    given["space"] = "python-source"
    spec = resolve(SearchRequest(**given, data="synthetic"), Here()).spec
    with pytest.raises(UsageError, match="name one with --from"):
        check_quality(spec)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["inherit", "distil", "supernet", "retrain-"])
def test_killed_in_each_new_stage_it_ends_alike(
    whole: RunFolder, llama: Path, data: Path, tmp_path: Path, stage: str
) -> None:
    folder = begun(tmp_path / "run", llama, data)
    process = start(folder, stepped=True)
    assert process.stdin is not None and process.stdout is not None
    for line in process.stdout:
        kind, name = line.split()
        if kind == "Progress" and name.startswith(stage):
            break
        process.stdin.write("\n")
        process.stdin.flush()
    process.kill()
    process.communicate()
    work(RunFolder.open(folder.path))
    assert results(folder) == results(whole)


@pytest.mark.slow
@pytest.mark.ray
def test_workers_of_ray_find_the_same(
    whole: RunFolder, llama: Path, data: Path, tmp_path: Path, ray_session: None
) -> None:
    folder = begun(tmp_path / "run", llama, data)
    settings = ExecutorSettings("ray", ray_address="auto", workers=2, train_workers=1)
    list(run_search(folder, settings))
    assert results(folder) == results(whole)

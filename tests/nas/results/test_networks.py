"""Opening trained networks of a run: which one, with what weights, on which data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.results.networks import (
    OpenedData,
    TrainedNetwork,
    check_vocabularies,
    choose_trained,
    evaluate_network,
    open_data,
    open_network,
    translate_text,
)
from nas.run.folder import RunFolder
from nas.run.layout import HALVING_FILE
from nas.search.front import pick, read_front
from search_spaces.errors import DamagedRunError, DataError, UsageError
from supernet.beam_search import BeamSettings
from supernet.tasks.base import Task
from supernet.tasks.evaluation import score
from supernet.tasks.translating import DECODING_TOKENS
from supernet.tasks.translation import TranslationTask
from supernet.training.checkpoint import load, save
from tests.support import prepare_cases, trained_cases
from tests.support.pipeline_cases import tree
from tests.support.trained_cases import (
    LANGUAGE,
    SPACES,
    begun,
    networks,
    train,
    trained,
    with_front,
)

small_corpus = trained_cases.small_corpus

GREEDY = BeamSettings(beam_size=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(made.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def only(folder: RunFolder) -> TrainedNetwork:
    return open_network(folder, choose_trained(folder, None), "cpu")


# -- which network --------------------------------------------------------------------------------


def test_the_only_one_is_chosen(run: RunFolder) -> None:
    first = networks(run.spec.space, 1)[0].id
    assert choose_trained(run, None) == first
    assert choose_trained(run, first) == first
    assert choose_trained(run, first[:2]) == first


def test_of_several_without_a_winner_one_has_to_be_named(run: RunFolder) -> None:
    ids = sorted([choose_trained(run, None), train(run, 1)])
    (run.path / "pareto.json").unlink()
    with pytest.raises(UsageError, match=f"2 networks .* --arch: {', '.join(ids)}"):
        choose_trained(run, None)
    assert [choose_trained(run, one[:6]) for one in ids] == ids


def test_of_several_the_winner_is_chosen(run: RunFolder) -> None:
    ids = [choose_trained(run, None), train(run, 1)]
    winner = pick(read_front(run), run.spec.pick).id
    assert winner in ids and choose_trained(run, None) == winner


def test_the_winner_is_the_candidate_that_halving_has_left(run: RunFolder) -> None:
    ids = [choose_trained(run, None), train(run, 1)]
    for one in ids:
        (run.path / HALVING_FILE).unlink(missing_ok=True)
        run.append(HALVING_FILE, [{"winner": one}])
        assert choose_trained(run, None) == one


def test_a_beginning_that_several_share(run: RunFolder) -> None:
    for name in ("aaaa1", "aaaa2"):
        run.write_json(f"retrained/{name}/result.json", {})
    with pytest.raises(UsageError, match="several ids begin with aaa: aaaa1, aaaa2"):
        choose_trained(run, "aaa")


def test_one_of_the_front_that_is_not_trained_yet(run: RunFolder) -> None:
    other = networks(run.spec.space, 2)[1].id
    with pytest.raises(UsageError, match=f"nas retrain {run.path} --pick {other}$"):
        choose_trained(run, other[:5])


@pytest.mark.parametrize("given", ["zzzz", "", "best"])
def test_no_id_of_the_run(run: RunFolder, given: str) -> None:
    with pytest.raises(UsageError, match=f"'{given}' is the id of no network .* nearest id is"):
        choose_trained(run, given)


def test_none_is_trained(tmp_path: Path) -> None:
    folder = begun(tmp_path / "a run")
    for given in (None, "abcd"):
        with pytest.raises(UsageError, match="has no front yet; nas resume"):
            choose_trained(folder, given)
    ids = with_front(folder)
    with pytest.raises(UsageError, match="no network .* yet; nas retrain '.*/a run'$"):
        choose_trained(folder, None)
    with pytest.raises(UsageError, match=f"nas retrain '.*/a run' --pick {ids[2]}"):
        choose_trained(folder, ids[2])


# -- its weights ----------------------------------------------------------------------------------


def test_the_weights_are_those_that_were_kept(run: RunFolder) -> None:
    network = only(run)
    state = load(run.path / "retrained" / network.architecture.id / "weights.pt")
    kept = network.model.state_dict()
    assert kept.keys() == state["model"].keys() and not network.model.training
    assert all(torch.equal(value, kept[name]) for name, value in state["model"].items())


def test_damaged_weights_are_refused(run: RunFolder) -> None:
    name = choose_trained(run, None)
    file = run.path / "retrained" / name / "weights.pt"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedRunError, match="checksum .* nas resume"):
        only(run)
    (run.path / "stages" / f"retrain-{name}.json").unlink()
    with pytest.raises(DamagedRunError, match="cannot read the checkpoint"):
        only(run)
    file.unlink()
    with pytest.raises(DamagedRunError, match="cannot read the checkpoint"):
        only(run)


@pytest.mark.parametrize("change", ["model", "architecture", "gone"])
def test_weights_of_something_else_are_refused(run: RunFolder, change: str) -> None:
    name = choose_trained(run, None)
    file = run.path / "retrained" / name / "weights.pt"
    (run.path / "stages" / f"retrain-{name}.json").unlink()
    state = load(file)
    other = load(run.path / "retrained" / train(run, 1) / "weights.pt")
    state |= {"gone": {}, "model": {"model": other["model"]}}.get(change, other)
    if change == "gone":
        del state["model"]
    save(file, state)
    with pytest.raises(DamagedRunError, match="another network|no network of this run's space"):
        open_network(run, name, "cpu")


def test_a_device_that_is_not_there(run: RunFolder) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        open_network(run, choose_trained(run, None), "abacus")


# -- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SPACES)
@pytest.mark.parametrize("split", ["test", "valid"])
def test_scores_are_those_of_the_split(tmp_path: Path, task: str, split: Any) -> None:
    folder = trained(tmp_path / "run", SPACES[task])
    network, data = only(folder), open_data(folder, None)
    beam = GREEDY if task == "translation" else None
    before = tree(folder.path)
    found = evaluate_network(network, data, split, beam, DECODING_TOKENS)
    assert tree(folder.path) == before
    rows = data.task.open_test() if split == "test" else data.task.valid
    expected = score(data.task, network.model, network.architecture, rows, beam=beam)
    assert found == expected and found.count > 0


def test_the_test_split_is_opened_only_when_asked_for(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(task: Task[Any, Any]) -> Any:
        raise DataError("the test split was opened")

    monkeypatch.setattr(TranslationTask, "open_test", closed)
    network, data = only(run), open_data(run, None)
    assert evaluate_network(network, data, "valid", GREEDY, DECODING_TOKENS).count
    assert translate_text(network, data, ["the fox"], GREEDY, DECODING_TOKENS)
    with pytest.raises(DataError, match="was opened"):
        evaluate_network(network, data, "test", GREEDY, DECODING_TOKENS)


# -- data -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared folders: `one`, `same` size of vocabulary, and `smaller`."""
    folder = tmp_path_factory.mktemp("corpora")
    prepare_cases.write_pairs(folder)
    prepare_cases.run(folder, out=folder / "one")
    prepare_cases.run(folder, out=folder / "same", max_length=32)
    prepare_cases.run(folder, out=folder / "smaller", vocab_size=120)
    return folder


@pytest.fixture
def moved(corpora: Path, tmp_path: Path) -> RunFolder:
    """A run whose data are no longer where they were."""
    shutil.copytree(corpora / "one", tmp_path / "was here")
    folder = trained(tmp_path / "run", dataset="one", data=str(tmp_path / "was here"))
    shutil.rmtree(tmp_path / "was here")
    return folder


def test_data_that_have_gone(moved: RunFolder, corpora: Path) -> None:
    with pytest.raises(DataError, match="was here, are not there; tell with --data DIR"):
        open_data(moved, None)
    data = open_data(moved, str(corpora / "one"))
    assert data.same
    check_vocabularies(moved, data)
    assert evaluate_network(only(moved), data, "test", GREEDY, DECODING_TOKENS).count


def test_other_data_serve_for_translating_alone(moved: RunFolder, corpora: Path) -> None:
    data = open_data(moved, str(corpora / "same"))
    assert not data.same
    check_vocabularies(moved, data)
    with pytest.raises(DataError, match=f"{corpora}/same does not hold .* --data DIR"):
        evaluate_network(only(moved), data, "valid", GREEDY, DECODING_TOKENS)


@pytest.mark.parametrize("name", ["smaller", "synthetic"])
def test_another_vocabulary_serves_for_nothing(moved: RunFolder, corpora: Path, name: str) -> None:
    data = open_data(moved, name if name == "synthetic" else str(corpora / name))
    sizes = {"smaller": 120, "synthetic": 100}
    words = f"source vocabulary of .*{name} has {sizes[name]} tokens, .* 150; .* --data DIR"
    with pytest.raises(DataError, match=words):
        check_vocabularies(moved, data)


def test_data_that_do_not_exist_or_are_of_another_task(moved: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data nowhere does not exist"):
        open_data(moved, "nowhere")
    with pytest.raises(DataError, match="nas data prepare"):
        open_data(moved, str(tmp_path))


def test_the_word_synthetic_names_the_generated_corpus(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", LANGUAGE)
    data: OpenedData = open_data(folder, "synthetic")
    assert data.same and data.name == "synthetic"
    (folder.path / "data.json").unlink()
    with pytest.raises(DamagedRunError, match="nas resume"):
        open_data(folder, None)

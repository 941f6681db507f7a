"""What a search trains at its end, and which of it wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.run.folder import RunFolder
from nas.search.front import Baseline, Role, pick, read_front, read_left, read_winner
from nas.stages.retrain import no_dearer, plain_rivals, settle
from search_spaces.errors import DamagedRunError
from tests.nas.search.test_front import entry, front
from tests.support.pipeline_cases import spec_of
from tests.support.trained_cases import with_front

WINNER: dict[str, Any] = {"valid_loss": 0.5, "loss_error": 0.02}


def run_of(path: Path, cost: float, roles: tuple[Role, ...] = ("nearest",)) -> tuple[Any, str, str]:
    """A run whose halving left a network of cost 10, beside a baseline; their ids."""
    asked: dict[str, Any] = {"retrain": 3, "pick": "sensible", "baseline": "plain"}
    folder = RunFolder.create(path / "run", spec_of(path / "spec", **asked))
    left, other = with_front(folder, 2)
    made = read_front(folder)
    beside = replace(pick(made, other), measured={"flops": cost})
    entry = replace(pick(made, left), measured={"quality": 1.0, "flops": 10.0})
    held = replace(made, entries=(entry,), baselines=(Baseline(beside, roles),))
    folder.write_json("pareto.json", held.to_json())
    folder.append("halving.jsonl", [{"winner": left}])
    return SimpleNamespace(folder=folder, spec=folder.spec), left, other


def trained(run: Any, name: str, **result: float) -> None:
    run.folder.write_json(f"retrained/{name}/result.json", result)


@pytest.mark.parametrize(
    ("cost", "loss", "error", "wins"),
    [
        (8.0, 0.519, 0.0, True),  # cheaper, and within the error of the best
        (8.0, 0.521, 0.5, False),  # its own error is another matter
        (10.4, 0.49, 0.02, True),  # a cost that is called equal
        (11.0, 0.49, 0.02, False),
        (99.0, 0.4, 0.099, True),  # dear, and nothing else is as good
        (99.0, 0.4, 0.101, False),  # which is in doubt
        (99.0, 0.4951, 0.0, False),  # 1 % counts as noise
    ],
)
def test_the_cheapest_within_the_noise_of_the_best_wins(
    tmp_path: Path, cost: float, loss: float, error: float, wins: bool
) -> None:
    run, left, plain = run_of(tmp_path, cost)
    trained(run, left, **WINNER)
    trained(run, plain, valid_loss=loss, loss_error=error)
    for first in (True, False):
        assert len(list(settle(run))) == (wins and first)  # it is told of once
        assert read_winner(run.folder) == (plain if wins else left)
        assert read_left(run.folder) == left
    trained(run, plain, valid_loss=0.6)  # trained anew, it is worse
    list(settle(run))
    assert read_winner(run.folder) == left and not run.folder.has("winner.json")


def test_without_an_error_the_usual_noise_counts(tmp_path: Path) -> None:
    run, left, plain = run_of(tmp_path, 8.0)
    trained(run, left, valid_loss=0.5)
    for loss, winner in ((0.504, plain), (0.506, left)):
        trained(run, plain, valid_loss=loss)
        list(settle(run))
        assert read_winner(run.folder) == winner


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        ({}, True),
        ({"limits": {"params": 1e6}}, True),
        ({"limits": {"latency_ms": 1.0}}, False),
        ({"pick": "best"}, False),
        ({"retrain": 1}, False),
    ],
)
def test_plain_networks_may_win_where_nothing_is_said(asked: dict[str, Any], may: bool) -> None:
    spec: Any = SimpleNamespace(**({"pick": "sensible", "retrain": 3, "limits": {}} | asked))
    plain = entry(0.9, 20)
    made = replace(front(entry(0.2, 40)), baselines=(Baseline(plain, ("nearest",)),))
    assert plain_rivals(made, spec) == [plain.id] * may
    own = replace(made, baselines=(Baseline(plain, ("own",)),))
    assert plain_rivals(own, spec) == []


def test_of_a_doubtful_cost_the_predicted_one_decides() -> None:
    known = replace(entry(0.2, 40), predicted={"quality": 0.2, "flops": 40.0})
    assert no_dearer(entry(0.9, 42), known, ["flops"])  # which is called equal
    assert not no_dearer(entry(0.9, 43), known, ["flops"])
    slow = replace(entry(0.9, 90), doubtful={"flops": "noise"}, predicted={"flops": 30.0})
    assert no_dearer(slow, known, ["flops"])
    assert not no_dearer(replace(slow, predicted={"flops": 50.0}), known, ["flops"])


def test_what_is_not_trained_or_somebodys_own_wins_nothing(tmp_path: Path) -> None:
    run, left, plain = run_of(tmp_path / "a", 8.0)
    trained(run, plain, valid_loss=0.1)
    list(settle(run))
    assert read_winner(run.folder) == left  # whose training has diverged
    run, left, own = run_of(tmp_path / "b", 8.0, ("own",))
    trained(run, left, **WINNER)
    trained(run, own, valid_loss=0.1)
    list(settle(run))
    assert read_winner(run.folder) == left


@pytest.mark.parametrize("text", ["[]", "{}", '{"left": "a"}'])
def test_a_damaged_note_of_the_winner_is_told(tmp_path: Path, text: str) -> None:
    run, _, _ = run_of(tmp_path, 8.0)
    (run.folder.path / "winner.json").write_text(text)
    with pytest.raises(DamagedRunError, match=r"winner\.json is damaged .*: delete it"):
        read_winner(run.folder)


def test_another_halving_forgets_what_was_settled(tmp_path: Path) -> None:
    run, left, plain = run_of(tmp_path, 8.0)
    trained(run, left, **WINNER)
    trained(run, plain, valid_loss=0.4)
    list(settle(run))
    assert read_winner(run.folder) == plain
    (run.folder.path / "halving.jsonl").unlink()
    assert read_winner(run.folder) is None
    run.folder.append("halving.jsonl", [{"winner": "another"}])
    assert read_winner(run.folder) == "another"
    list(settle(run))  # which is on no front
    assert not run.folder.has("winner.json")

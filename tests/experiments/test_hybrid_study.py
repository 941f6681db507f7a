"""The study of mixed kinds of attention: its spaces, winners, marks and words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from experiments import hybrid_study
from experiments.hybrid_study import (
    STUDY,
    Winner,
    again,
    fronts_of,
    kinds_of,
    numbers_at,
    parts_of,
    ranked_rows,
    space_at,
    space_of,
    timed_ms,
    winners_of,
)
from experiments.hybrid_tables import (
    CACHE,
    MIXED,
    comparisons,
    has_several,
    marks,
    met,
    show,
)
from experiments.trainings import Floats, Oracle
from nas.objectives import counted
from nas.objectives.size import network_costs
from nas.request.presets import budget_for
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.loading import load_space
from search_spaces.space import Genotypes
from search_spaces.variation import largest, sample_distinct, smallest
from tests.support.study_cases import printed

RECALL = load_space("recall")
USUAL = int(RECALL.workload["source"])
SPACE = space_at(RECALL, 64)
ROWS = sample_distinct(SPACE, np.random.default_rng(0), 40)


# -- the spaces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["recall", "python-source"])
def test_a_space_at_a_length_reads_that_long_and_writes_one_token_more(name: str) -> None:
    space = space_at(load_space(name), 256)
    assert space.workload["source"] == 256 and space.model.max_length == 257
    assert space.data.get("length") == (256 if name == "recall" else None)
    assert space.slots == space_at(load_space(name), 512).slots


def test_a_space_at_no_length_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 token; given 0"):
        space_at(RECALL, 0)


def test_costs_are_taken_behind_a_context_and_texts_stay_as_long() -> None:
    space = space_at(RECALL, 64, 2048)
    assert space.data == SPACE.data and space.model.max_length == 2049
    assert numbers_at(space, USUAL, "quick", {}) == numbers_at(SPACE, USUAL, "quick", {})
    rows = parts_of(SPACE)["softmax"].translate(
        sample_distinct(parts_of(SPACE)["softmax"], np.random.default_rng(2), 5), SPACE
    )
    grown = counted(space, rows, [CACHE])[CACHE] / counted(SPACE, rows, [CACHE])[CACHE]
    assert grown == pytest.approx(np.full(5, 2048 / 64), rel=1e-3)
    assert (network_costs(space, rows) == network_costs(SPACE, rows)).all()
    with pytest.raises(UsageError, match="behind at least 1 token; given 0"):
        space_at(RECALL, 64, 0)


def test_an_update_reads_as_many_sequences_at_any_length() -> None:
    for length in (64, 128, 512):
        space = space_at(RECALL, length)
        budget = budget_for(space, "quick", numbers_at(space, USUAL, "quick", {}))
        shipped = budget_for(SPACE, "quick", {})
        for now, then in ((budget.supernet, shipped.supernet), (budget.retrain, shipped.retrain)):
            assert now.segment_length == length
            assert now.max_tokens == then.max_tokens // USUAL * length


def test_numbers_that_are_given_go_before_all_others() -> None:
    given = {"retrain.max_tokens": "99", "retrain.max_updates": "5"}
    numbers = numbers_at(SPACE, USUAL, "quick", given)
    assert numbers["retrain.max_tokens"] == "99" and numbers["retrain.max_updates"] == "5"


@pytest.mark.parametrize("name", ["recall", "python-source"])
def test_pure_spaces_have_one_kind_and_the_mixed_one_all(name: str) -> None:
    parts = parts_of(space_at(load_space(name), 128))
    assert list(parts) == ["softmax", "window", "linear", MIXED]
    for kind, part in parts.items():
        networks = part.decode(sample_distinct(part, np.random.default_rng(1), 30))
        kinds = {one.partition(":")[0] for network in networks for one in kinds_of(network)}
        assert kinds == ({"softmax", "window", "linear"} if kind == MIXED else {kind})


# -- winners --------------------------------------------------------------------------------------


def oracle_of(qualities: Floats) -> Oracle:
    """That knows the qualities of `ROWS`."""
    known = {row.tobytes(): value for row, value in zip(ROWS, qualities.tolist(), strict=True)}

    class Known:
        space = SPACE

        def __call__(self, rows: Genotypes) -> Floats:
            return np.array([known[row.tobytes()] for row in rows])

    return cast(Oracle, Known())


def cache(rows: Genotypes) -> Floats:
    return counted(SPACE, rows, [CACHE])[CACHE][:, None]


def test_winners_are_the_best_and_the_cheapest_that_is_as_good() -> None:
    prices = cache(ROWS)[:, 0]
    dear, fair, cheap = (int(np.argsort(prices)[place]) for place in (-1, 20, 0))
    qualities = np.full(len(ROWS), 0.9)
    qualities[[dear, fair, cheap]] = 0.10, 0.11, 0.2
    asked = oracle_of(qualities)
    best, lean = winners_of(asked, {CACHE: {MIXED: ROWS}}, {CACHE: cache})
    assert (best.which, lean.which) == ("best", "lean")
    assert best.network.id == SPACE.decode(ROWS[[dear]])[0].id
    assert lean.network.id == SPACE.decode(ROWS[[fair]])[0].id


def test_beside_pure_spaces_the_cheapest_mix_as_good_as_the_best_of_them_wins_too() -> None:
    prices = cache(ROWS)[:, 0]
    networks = SPACE.decode(ROWS)
    mixes = [number for number, one in enumerate(networks) if has_several(kinds_of(one))]
    pure = next(number for number in range(len(ROWS)) if number not in mixes)
    cheaper, cheap, *_, dear = sorted(mixes, key=lambda number: prices[number])
    qualities = np.full(len(ROWS), 0.9)
    qualities[[pure, dear, cheap, cheaper]] = 0.5, 0.1, 0.51, 0.53
    found = {CACHE: {"softmax": ROWS[[pure]], MIXED: ROWS}}
    won = winners_of(oracle_of(qualities), found, {CACHE: cache})
    (match,) = [winner for winner in won if winner.which == "match"]
    assert match.space == MIXED and match.network.id == networks[cheap].id
    qualities[mixes] = 0.9
    won = winners_of(oracle_of(qualities), found, {CACHE: cache})
    assert [winner.which for winner in won] == ["best", "lean"] * 2


def test_a_front_is_listed_from_its_cheapest_network_on() -> None:
    asked = oracle_of(1.0 - cache(ROWS)[:, 0])  # the larger the better, so most are on the front
    (row,) = fronts_of(asked, {CACHE: {MIXED: ROWS}}, {CACHE: cache})
    costs = [point["cost"] for point in row["front"]]
    assert costs == sorted(costs) and len(costs) > 5
    assert row["hypervolume"] == pytest.approx(1.0)
    assert all(point["quality"] == pytest.approx(1.0 - point["cost"]) for point in row["front"])


def test_ranked_networks_are_the_winners_and_others_spread_over_all_qualities() -> None:
    qualities = np.linspace(0.0, 1.0, len(ROWS))
    asked = oracle_of(qualities)
    won = [Winner(CACHE, MIXED, "best", ROWS[:1], SPACE.decode(ROWS[:1])[0])] * 2
    rows = ranked_rows(asked, won, {CACHE: {MIXED: ROWS, "softmax": ROWS[:5]}}, 12)
    assert len(rows) == len({row.tobytes() for row in rows}) == 12
    assert asked(rows)[0] == 0.0 and asked(rows).max() == 1.0
    assert np.diff(asked(rows)[1:]).max() < 0.15
    few = ranked_rows(asked, won, {CACHE: {MIXED: ROWS[:4]}}, 12)
    assert len(few) == 4


def test_times_are_taken_once_and_all_anew_where_one_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = SPACE.decode(np.concatenate([smallest(SPACE), largest(SPACE)]))
    timed: list[int] = []

    def time_calls(calls: list[Any], device: str, **options: Any) -> list[Any]:
        timed.append(len(calls))
        return [SimpleNamespace(median_ms=float(len(timed))) for _ in calls]

    monkeypatch.setattr(hybrid_study, "time_calls", time_calls)
    monkeypatch.setattr(hybrid_study, "timed_call", lambda *given: None)
    assert timed_ms(SPACE, networks[:1], "decode_ms", tmp_path) == [1.0]
    assert timed_ms(SPACE, networks[:1], "decode_ms", tmp_path) == [1.0]
    assert timed == [1]
    assert timed_ms(SPACE, networks, "decode_ms", tmp_path) == [2.0, 2.0]
    assert timed == [1, 2]


def test_a_small_space_is_known_whole_and_searched_again() -> None:
    file = Path(hybrid_study.__file__).with_name("recall_kinds.toml")
    space = space_at(load_space(str(file)), 16, 2048)
    assert space.size == 3 + 9 + 27
    asked_for: set[bytes] = set()

    class Told:
        """A window directly below softmax is all it takes."""

        problem = SimpleNamespace(reference=np.array([1.0, 1.0]))

        def __call__(self, rows: Genotypes) -> Floats:
            asked_for.update(row.tobytes() for row in rows)
            texts = [" ".join(kinds_of(network)) for network in space.decode(rows)]
            return np.array([0.0 if "window softmax" in text else 0.5 for text in texts])

        def keep(self) -> None:
            pass

    told = Told()
    told.space = space  # type: ignore[attr-defined]

    def price(rows: Genotypes) -> Floats:
        return counted(space, rows, [CACHE])[CACHE][:, None]

    options = SimpleNamespace(searches=1, budget=39, first=12)
    whole = again(cast(Oracle, told), {CACHE: price}, cast(Any, options))
    assert len(asked_for) == len(whole["networks"]) == 39
    assert [one["in_search"] for one in whole["networks"]] == [0.0] * 7 + [0.5] * 32
    (row,) = whole["searches"]
    assert row["kinds"] == ["window", "softmax"]
    # With as many evaluations as networks nobody can miss it.
    for places in (row["found_at"], row["at_random"]):
        assert len(places) == 1 and 1 <= places[0] <= 39
    shown = content()
    shown["contexts"][0]["whole"] = whole
    text = printed(show(shown))
    assert "all 39 networks" in text and "1 of 1" in text


# -- what the numbers say -------------------------------------------------------------------------


def winner(space: str, kinds: list[str], accuracies: list[float], **costs: float) -> dict[str, Any]:
    return {
        "cost": CACHE,
        "space": space,
        "which": "best",
        "id": f"{len(kinds)}{kinds[0]}",
        "kinds": kinds,
        "architecture": {},
        "in_search": 0.1,
        "costs": {"flops": 1e6, **costs},
        "scores": [{"accuracy": value, "loss": 1.0} for value in accuracies],
    }


def content(tau: float = 0.8) -> dict[str, Any]:
    """Made-up numbers that meet all marks."""
    return {
        "space": "recall",
        "length": 2048,
        "quality": "accuracy",
        "budget": 8,
        "seeds": 3,
        "updates": {"alone": 500, "supernet": 0, "scratch": 1000},
        "contexts": [behind(tau)],
    }


def behind(tau: float = 0.8) -> dict[str, Any]:
    """Those of one context."""
    softmax = {CACHE: 1.0, "decode_ms": 4.0, "prefill_ms": 40.0, "flops": 4e6}
    mixed = {CACHE: 0.55, "decode_ms": 3.0, "prefill_ms": 20.0, "flops": 2e6}
    linear = {CACHE: 0.1, "decode_ms": 2.0, "prefill_ms": 10.0}
    networks = [
        {"id": str(n), "kinds": ["softmax"], "in_search": n / 10, "scratch": n / 10}
        for n in range(10)
    ]
    return {
        "context": 2048,
        "whole": None,
        "fronts": [
            {"cost": CACHE, "space": name, "hypervolume": share, "front": []}
            for name, share in (("softmax", 0.5), ("linear", 0.25), (MIXED, 1.0))
        ],
        "winners": [
            winner("softmax", ["softmax", "softmax"], [0.98, 0.99, 1.0], **softmax),
            winner("linear", ["linear"], [0.2, 0.2, 0.3], **linear),
            winner(MIXED, ["window:8", "softmax"], [0.98, 0.98, 0.99], **mixed),
        ],
        "ranking": {"networks": networks, "kendall_tau": tau, "interval": [0.5, 0.9]},
    }


def judged(content: dict[str, Any]) -> dict[str, bool]:
    """The marks behind its only context."""
    return marks(content, content["contexts"][0])


def test_a_mixed_winner_is_compared_with_the_best_pure_one() -> None:
    (one,) = comparisons(content(), behind())
    assert one.pure["space"] == "softmax"
    assert one.gain == pytest.approx(0.98333 - 0.99, abs=1e-4)
    assert one.deviation == pytest.approx(np.hypot(0.01, 0.005774), abs=1e-5)
    assert one.ratios == {CACHE: 0.55, "decode_ms": 0.75, "prefill_ms": 0.5, "flops": 0.5}
    assert judged(content()) == {"cache": True, "time": True, "ranking": True} and met(content())


def test_marks_are_missed_each_for_its_own_reason() -> None:
    worse = content()
    worse["contexts"][0]["winners"][2]["scores"] = [{"accuracy": 0.9, "loss": 1.0}] * 3
    assert judged(worse) == {"cache": False, "time": False, "ranking": True}
    large = content()
    large["contexts"][0]["winners"][2]["costs"][CACHE] = 0.61
    assert judged(large) == {"cache": False, "time": False, "ranking": True}
    slow = content()
    slow["contexts"][0]["winners"][2]["costs"] |= {"decode_ms": 3.1, "prefill_ms": 31.0}
    assert judged(slow) == {"cache": True, "time": False, "ranking": True}
    assert judged(content(tau=0.69)) == {"cache": True, "time": True, "ranking": False}
    assert not met(slow)
    slow["contexts"].append(behind() | {"context": 4096})
    assert met(slow), "the marks are those of the longest context"


def test_less_is_better_where_quality_is_nats() -> None:
    nats = content() | {"quality": "recall_nats"}
    for row in nats["contexts"][0]["winners"]:
        row["scores"] = [{"recall_nats": 1 - one["accuracy"], "loss": 1.0} for one in row["scores"]]
    (one,) = comparisons(nats, nats["contexts"][0])
    assert one.pure["space"] == "softmax" and one.gain == pytest.approx(-0.00667, abs=1e-4)


def test_a_winner_of_the_mixed_space_with_one_kind_is_no_mix() -> None:
    pure = content()
    pure["contexts"][0]["winners"][2]["kinds"] = ["window:8", "window:16"]
    assert comparisons(pure, pure["contexts"][0]) == [] and not judged(pure)["cache"]


def test_what_was_not_timed_meets_no_mark_of_time() -> None:
    untimed = copy.deepcopy(content())
    for row in untimed["contexts"][0]["winners"]:
        del row["costs"]["decode_ms"], row["costs"]["prefill_ms"]
    assert judged(untimed) == {"cache": True, "time": False, "ranking": True}
    text = printed(show(untimed))
    assert "not timed, so not met" in text and "prefill ms" not in text


def test_everything_printed_comes_from_the_numbers_that_are_kept() -> None:
    kept = json.loads(json.dumps(content()))
    text = printed(show(kept))
    assert "recall, 2048 tokens" in text and "1,000 updates, 3 seeds" in text
    assert "window:8 softmax" in text and "0.550" in text and "0.750" in text
    assert "0.800 (0.50 … 0.90) (wanted ≥ 0.7): met" in text
    missed = printed(show(content(tau=0.1)))
    assert "MISSED" in missed and "MISSED" not in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--costs", "params"], "no cost 'params' in this study; allowed are kv_cache_mb"),
        (["--seeds", "1"], "at least 2 seeds; given 1"),
        (["--timed", "flops"], "timed for decode_ms, prefill_ms; given --timed flops"),
        (["--first", "33"], "2 to 32 are drawn before any is predicted; given --first 33"),
        (["--budget", "20"], "of 20 evaluations of a search 2 to 20 are drawn"),
        (["--ranked", "9"], "at least 10 networks; given 9"),
        (["--set", "epochs"], "--set takes NAME=VALUE"),
        (["--set", "a=1", "--set", "epochs"], "given 'epochs'"),
    ],
)
def test_numbers_that_say_nothing_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert STUDY.main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_numbers_may_be_given_one_after_the_other() -> None:
    words = ["--set", "retrain.epochs=45", "--set", "own_seeds=2", "own_updates=600"]
    assert STUDY.parser.parse_args(words).set == [words[1], *words[3:]]


def test_linear_layers_compute_what_the_command_says(tmp_path: Path) -> None:
    file = Path(hybrid_study.__file__).with_name("python_kinds.toml")
    words = ["--context", "256", "2048", "--linear-kernel", "elu"]
    options = cast(Any, STUDY.parser.parse_args([*words, "--space", str(file)]))
    assert space_of(options).model.linear_kernel == "elu"
    assert STUDY.results(options) == "hybrid_study_python-kinds_elu_256_256-2048"
    own = tmp_path / "own.toml"
    own.write_text(file.read_text("utf-8").replace('"linear"]', '"linear:decay"]'), "utf-8")
    with pytest.raises(UsageError, match="none without a kernel of its own"):
        space_of(cast(Any, STUDY.parser.parse_args([*words, "--space", str(own)])))


@pytest.mark.slow
def test_a_study_begun_again_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.harness.RESULTS", tmp_path)
    space = Path(hybrid_study.__file__).with_name("recall_kinds.toml")
    arguments = ["--space", str(space), "--costs", "kv_cache_mb", "--json", "--seeds", "2"]
    arguments += ["--preset", "smoke", "--budget", "20", "--first", "12", "--ranked", "10"]
    arguments += ["--work", str(tmp_path / "work")]
    arguments += ["--set", "own_updates=2", "retrain.max_updates=2", "valid_examples=4"]
    arguments += ["--searches", "1", "--workers", "2"]
    STUDY.main(arguments)
    first = json.loads(capsys.readouterr().out)
    work = tmp_path / "work" / "recall-kinds-16"
    before = {file: file.stat().st_mtime_ns for file in (work / "trained").iterdir()}
    assert len(before) >= 10
    STUDY.main(arguments)
    assert json.loads(capsys.readouterr().out) == first
    assert {file: file.stat().st_mtime_ns for file in (work / "trained").iterdir()} == before
    for row in first["contexts"][0]["winners"]:
        assert row["costs"]["flops"] == network_costs_of(row, space)
    assert first["contexts"][0]["whole"]["searches"]
    assert (tmp_path / "hybrid_study_recall-kinds_16.json").exists()


def network_costs_of(row: dict[str, Any], file: Path) -> float:
    space = load_space(str(file))
    rows = space.encode([Architecture.from_json(row["architecture"])])
    return float(network_costs(space, rows)[0, 1])

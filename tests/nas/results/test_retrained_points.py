"""Networks trained after a search stand at the quality that they have then, with its error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from nas.report.page import render
from nas.request.presets import budget_for
from nas.results.contents import RunContents
from nas.results.reader import read_contents
from nas.results.retrained_points import RetrainedPoint, retrained_points
from nas.run.folder import RunFolder
from nas.search.front import BASELINES_SCHEMA, read_front
from tests.support.report_cases import charts, trace, words_of
from tests.support.run_fixture import NUMBERS, finished_run, retrain, rewrite

VALID_EXAMPLES, ACCURACY, ERROR = 287, 0.98, 0.01


def trained_run(path: Path, **values: Any) -> RunFolder:
    """A run whose front was trained, the cheaper networks worse."""
    run = finished_run(path, **values)
    for place, one in enumerate(read_front(run).entries):
        retrain(run, one)
        name = f"retrained/{one.id}/result.json"
        rewrite(run, name, ["valid_loss"], 0.1 + 0.1 * place)
        rewrite(run, name, ["loss_error"], ERROR)
    return run


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> RunContents:
    return read_contents(trained_run(tmp_path_factory.mktemp("runs") / "run"))


def known(contents: RunContents) -> list[RetrainedPoint]:
    return [one for one in retrained_points(contents) if one.interval is not None]


def wilson(right: float, count: int) -> tuple[float, float]:
    """Of the share that is wrong."""
    z = 1.959964
    middle = (right + z**2 / (2 * count)) / (1 + z**2 / count)
    reach = z / (1 + z**2 / count) * math.sqrt(right * (1 - right) / count + (z / count) ** 2 / 4)
    return 1 - middle - reach, 1 - middle + reach


def test_a_loss_has_the_error_of_its_mean(contents: RunContents) -> None:
    points = known(contents)
    assert len(points) > 2
    for one in points:
        loss = one.after.value("quality")
        assert loss == one.after.measured["quality"] != one.before.value("quality")
        assert one.interval == pytest.approx((loss - 1.95996 * ERROR, loss + 1.95996 * ERROR))
        assert one.after.measured["valid_accuracy"] == ACCURACY
        assert one.after.measured["params"] == one.before.measured["params"]


@pytest.mark.parametrize("judged", [0, 100, 1000])
def test_a_share_of_examples_is_binomial(tmp_path: Path, judged: int) -> None:
    budget = budget_for(None, "quick", {**NUMBERS, "valid_examples": str(judged)})
    run = trained_run(tmp_path / "run", quality="accuracy", budget=budget)
    for one in read_front(run).entries:  # of older versions, which kept no error
        name = f"retrained/{one.id}/result.json"
        run.write_json(name, {k: v for k, v in run.read_json(name).items() if k != "loss_error"})
    count = 100 if judged == 100 else VALID_EXAMPLES
    right = round(count * ACCURACY) / count
    for one in known(read_contents(run)):
        assert one.after.measured["quality"] == pytest.approx(1 - ACCURACY)
        assert one.interval == pytest.approx(wilson(right, count), abs=1e-6)


def test_what_is_not_known_has_no_bar(tmp_path: Path) -> None:
    run = read_contents(finished_run(tmp_path / "run"))
    (one,) = retrained_points(run)
    assert one.interval is None
    page = render(run)
    assert "error_y" not in trace(page, "front-latency_ms", "retrained")
    assert "sampling error" not in words_of(page) and "broken line" not in words_of(page)


def test_bars_and_the_front_of_the_trained_are_drawn(contents: RunContents) -> None:
    page = render(contents)
    stars = trace(page, "front-latency_ms", "retrained")
    assert stars["marker"]["symbol"] == "star" and len(stars["x"]) > 2
    bars = dict(zip(stars["customdata"], stars["error_y"]["array"], strict=True))
    points = {one.after.id: one for one in retrained_points(contents)}
    for name, bar in bars.items():
        interval = points[name].interval
        high = 0.0 if interval is None else interval[1] - points[name].after.value("quality")
        assert bar == pytest.approx(high, abs=1e-5)
    (stairs,) = (
        one
        for one in charts(page)["front-latency_ms"]["data"]
        if one["line" if one["mode"] == "lines" else "marker"].get("dash") == "6px,3px"
    )
    pairs = list(zip(stairs["x"], stairs["y"], strict=True))
    assert pairs == sorted(pairs) and stairs["y"] == sorted(stairs["y"], reverse=True)
    assert set(pairs) <= set(zip(stars["x"], stars["y"], strict=True))
    assert "The broken line is the front of the stars alone." in words_of(page)
    assert "A bar is the 95 % sampling error" in words_of(page)


def test_baselines_are_crosses_with_bars_and_not_on_the_line(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")
    data = run.read_json("pareto.json")
    trained = data["front"].pop(1)
    baseline = {**trained, "roles": ["largest"]}
    run.write_json("pareto.json", {**data, "schema": BASELINES_SCHEMA, "baselines": [baseline]})
    (cross,) = (one for one in retrained_points(read_contents(run)) if one.baseline)
    assert cross.after.id == trained["id"] and cross.interval is not None
    page = render(read_contents(run))
    drawn = trace(page, "front-latency_ms", "baseline, trained")
    assert drawn["customdata"] == [trained["id"]] and len(drawn["error_y"]["array"]) == 1
    assert trained["id"] not in trace(page, "front-latency_ms", "retrained")["customdata"]

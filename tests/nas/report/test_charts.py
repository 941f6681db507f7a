"""The charts of the front and the pictures of networks show what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from latency.timings import read_timings
from nas.report.front_section import good_corner
from nas.report.network_pictures import MOST_SHOWN, _spread, picture
from nas.report.page import render
from nas.results.contents import RunContents
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.search.pareto import non_dominated
from search_spaces.loading import load_space
from search_spaces.measurement import Measurement
from search_spaces.variation import sample
from tests.support import report_cases
from tests.support.report_cases import charts, trace
from tests.support.run_fixture import OBSERVED, POPULATION, finished_run

finished, run, contents = report_cases.finished, report_cases.run, report_cases.contents


# -- the front ----------------------------------------------------------------------------------


def test_the_front_is_drawn_where_it_was_measured(contents: RunContents) -> None:
    assert contents.front is not None
    drawn = trace(render(contents), "front-latency_ms", "front, measured")
    points = np.array([drawn["x"], drawn["y"]]).T
    np.testing.assert_allclose(points, contents.front.points()[:, ::-1], rtol=1e-5)


def test_where_good_networks_lie_follows_from_the_costs(contents: RunContents) -> None:
    assert good_corner(contents, ["params"]).endswith("at the bottom left")
    assert good_corner(contents, ["tokens_per_s"]).endswith("at the bottom right")
    both = good_corner(contents, ["params", "tokens_per_s"])
    assert "bottom left" in both and "of tokens per second more is better" in both


def test_observed_predicted_and_retrained_are_told_apart(contents: RunContents) -> None:
    page = render(contents)
    counts = {
        name: len(trace(page, "front-latency_ms", name)["x"])
        for name in ("observed", "predicted", "retrained")
    }
    assert counts == {"observed": OBSERVED, "predicted": POPULATION, "retrained": 1}
    assert trace(page, "front-latency_ms", "retrained")["y"] == [0.0625]
    assert "(predicted)" in trace(page, "front-latency_ms", "predicted")["text"][0]


def test_the_hover_shows_every_layer(contents: RunContents) -> None:
    assert contents.front is not None
    entry = contents.front.entries[0]
    assert entry.architecture.encoder is not None
    text = trace(render(contents), "front-latency_ms", "front, measured")["text"][0]
    for number, layer in enumerate(entry.architecture.encoder.layers, start=1):
        assert f"<br>{number}: {layer.attention}, {layer.num_heads} head" in text
        assert f"FFN {layer.ffn_dim}" in text


def test_with_three_objectives_the_line_joins_the_best_only(tmp_path: Path) -> None:
    names = ("quality", "latency_ms", "params")
    run = finished_run(tmp_path / "run", objectives=names, limits={"flops": 9876000})
    page = render(read_contents(run))
    assert {"front-latency_ms", "front-params", "front-flops"} <= set(charts(page))
    drawn = charts(page)["front-latency_ms"]["data"]
    line = next(one for one in drawn if one["mode"] == "lines")
    assert non_dominated(np.array([line["x"], line["y"]]).T).all()
    assert len(line["x"]) < len(trace(page, "front-latency_ms", "front, measured")["x"])
    assert charts(page)["front-flops"]["layout"]["shapes"][0]["x0"] == 9876000
    assert "The dashed line is the limit of 9,876,000." in page and "FLOPs ≤ 9,876,000" in page
    assert charts(page)["front-params"]["layout"]["shapes"] == []


def test_the_predicted_networks_are_the_best_of_all_generations(run: RunFolder) -> None:
    shown = [
        tuple(e.predicted[n] for n in run.spec.objectives) for e in read_contents(run).population
    ]
    lines = run.read_journal("population.jsonl")
    everything = np.concatenate([line["objectives"] for line in lines])
    best = {tuple(point) for point in everything[non_dominated(everything)].tolist()}
    assert len(shown) == POPULATION
    assert best <= set(shown) or set(shown) <= best


def test_networks_beyond_a_limit_are_not_drawn_as_predicted(run: RunFolder) -> None:
    kept = {entry.predicted["quality"] for entry in read_contents(run).population[:5]}
    lines = run.read_journal("population.jsonl")
    for line in lines:
        line["violations"] = [0.5 * (point[0] not in kept) for point in line["objectives"]]
    (run.path / "population.jsonl").unlink()
    run.append("population.jsonl", lines)
    assert {entry.predicted["quality"] for entry in read_contents(run).population} == kept


def test_networks_known_to_a_predictor_do_not_judge_it(run: RunFolder) -> None:
    before = len(charts(render(read_contents(run)))["quality-check"]["data"][1]["x"])
    line = run.read_journal("verification.jsonl")[0]
    known = {
        "id": line["id"],
        "architecture": line["architecture"],
        "quality": 1,
        "valid_accuracy": 1,
    }
    run.append("observations.jsonl", [known])
    assert len(charts(render(read_contents(run)))["quality-check"]["data"][1]["x"]) == before - 1


def test_networks_timed_for_the_predictor_do_not_judge_it(run: RunFolder) -> None:
    before = charts(render(read_contents(run)))["latency-check"]["data"][1]["x"]
    network = read_contents(run).verified[0].architecture
    profile = read_timings(run.path / "latency" / "profile.jsonl")
    profile.record([(network, Measurement("latency_ms", 1.0, unit="ms"))])
    after = charts(render(read_contents(run)))["latency-check"]["data"][1]["x"]
    assert len(after) == len(before) - 1


# -- pictures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits", "multi30k", "wmt14", "wikitext103"])
def test_a_picture_has_a_box_for_each_attention_and_a_bar_for_each_ffn(name: str) -> None:
    space = load_space(name)
    (network,) = space.decode(sample(space, np.random.default_rng(1), 1))
    text = picture(network, 128)
    encoder = network.encoder.layers if network.encoder else ()
    decoder = network.decoder.layers if network.decoder else ()
    crossed = sum(layer.cross_attention is not None for layer in decoder)
    assert text.count('class="fill-ffn"') == len(encoder) + len(decoder)
    assert len(re.findall('class="fill-(softmax|linear|omni)"', text)) == (
        len(encoder) + len(decoder) + crossed
    )


@pytest.mark.parametrize("name", ["digits", "multi30k", "wmt14", "lm-small"])
def test_the_words_of_an_attention_fit_into_its_box(name: str) -> None:
    """A letter of theirs takes 5.6 pixels; windows and kernels have longer names."""
    space = load_space(name)
    for network in space.decode(sample(space, np.random.default_rng(1), 5)):
        pattern = r'width="(\d+)"[^>]*class="fill-\w+"/><text[^>]*>([^<]+ heads?[^<]*)<'
        boxes = re.findall(pattern, picture(network, 128))
        assert boxes and all(float(width) > 5.6 * len(words) for width, words in boxes)


def test_of_a_long_front_the_ends_and_the_picked_one_are_drawn(contents: RunContents) -> None:
    assert contents.front is not None
    entry = contents.front.entries[0]
    many = [type(entry)(str(n), entry.architecture, {}, {}) for n in range(200)]
    shown = [one.id for one in _spread(many, many[101])]
    assert {"0", "101", "199"} <= set(shown)
    assert len(shown) <= MOST_SHOWN
    assert _spread(many[:5], None) == many[:5]

"""The report: one page, complete, honest about what is missing, safe with hostile text."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects
import pytest

from latency.profile import read_profile
from nas.front import read_front
from nas.pareto import non_dominated
from nas.report import write_report
from nas.report.contents import RunContents
from nas.report.network_pictures import MOST_SHOWN, _spread, picture
from nas.report.page import CHAPTERS, render
from nas.report.reading import read_contents
from nas.report.summary_section import search_command
from nas.run.folder import RunFolder
from nas.run.presets import budget_for
from nas.run.spec import SearchSpec, build_spec
from nas.run.vetoes import read_vetoes
from search_spaces.errors import DamagedRunError
from search_spaces.loading import dump_space, load_space
from search_spaces.measurement import Measurement
from search_spaces.operators import sample
from tests.run_fixture import OBSERVED, POPULATION, empty_run, finished_run, retrain, rewrite

OPTIONAL = [
    "data.json",
    "latency/profile.jsonl",
    "latency/predictor.json",
    "supernet/history.json",
    "observations.jsonl",
    "ranker/report_card.json",
    "pruned_space.toml",
    "pruning.json",
    "population.jsonl",
    "verification.jsonl",
    "pareto.json",
]

HOSTILE = '</script><img src=x onerror="alert(1)">'


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("runs") / "digits-1").path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFolder:
    return RunFolder.open(shutil.copytree(finished, tmp_path / "digits-1"))


@pytest.fixture(scope="session")
def contents(finished: Path) -> RunContents:
    return read_contents(RunFolder.open(finished))


def charts(page: str) -> dict[str, Any]:
    """Name → plotly's data and layout."""
    found = re.findall(
        r'<script type="application/json" data-chart="chart-(.*?)">(.*?)</script>', page
    )
    return {name: json.loads(source) for name, source in found}


def trace(page: str, chart: str, name: str) -> dict[str, Any]:
    return next(one for one in charts(page)[chart]["data"] if one.get("name") == name)


def words_of(page: str) -> str:
    """What a reader sees outside the charts, in one line."""
    plain = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", plain)).split())


# -- the page as a whole ------------------------------------------------------------------------


def test_a_finished_run_has_every_section_and_lacks_nothing(contents: RunContents) -> None:
    page = render(contents)
    for anchor in CHAPTERS:
        assert f'<section id="{anchor}">' in page
    assert 'class="missing"' not in page
    assert 'class="warning"' not in page


def test_the_page_needs_nothing_from_elsewhere(run: RunFolder) -> None:
    page = write_report(run).read_text("utf-8")
    assert "Plotly" in page
    # Outside of the plotly bundle, whose size sets it apart.
    ours = re.sub(r"<script>.{100000,}?</script>", "", page, flags=re.DOTALL)
    assert len(ours) < 500_000
    assert re.search(r"<link|<iframe|@import|https?://|\bsrc=", ours) is None
    assert "default-src 'none'" in ours


def test_the_same_run_gives_the_same_bytes(run: RunFolder) -> None:
    first = write_report(run).read_bytes()
    run.finish("report", "digest", ("report.html",), 0.7)
    assert write_report(run).read_bytes() == first
    retrain(run, read_front(run).entries[-1])
    assert write_report(run).read_bytes() != first


def test_every_chart_is_drawn_and_understood_by_plotly(contents: RunContents) -> None:
    page = render(contents)
    for name, chart in charts(page).items():
        assert page.count(f'id="chart-{name}"') == 1
        text = re.sub(r"var\(--[\w-]+\)", "#000000", json.dumps(chart))
        plotly.graph_objects.Figure(**json.loads(text))


def test_every_colour_is_in_both_themes(contents: RunContents) -> None:
    page = render(contents)
    named = set(
        re.findall(r"var\((--[\w-]+)\)", page.partition("<main>")[2].partition("<script>")[0])
    )
    assert named
    # Once for a light page and once for a dark one.
    assert [name for name in named if page.count(f" {name}:") != 2] == []


def test_links_lead_somewhere(contents: RunContents) -> None:
    page = render(contents)
    targets = set(re.findall(r'href="#([^"]*)"', page))
    assert targets <= set(re.findall(r' id="([^"]*)"', page))


# -- runs that are not finished -----------------------------------------------------------------


def test_a_run_that_has_not_begun_says_so_everywhere(tmp_path: Path) -> None:
    page = render(read_contents(empty_run(tmp_path / "new")))
    assert page.count('class="missing"') == len(CHAPTERS) - 1
    assert "nas resume new" in words_of(page)
    assert charts(page) == {}


@pytest.mark.parametrize("name", OPTIONAL)
def test_any_file_may_be_missing(run: RunFolder, name: str) -> None:
    before = render(read_contents(run))
    (run.path / name).unlink()
    assert render(read_contents(run)) != before


def test_without_latency_nothing_is_said_about_times(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", objectives=("quality", "flops"))
    page = render(read_contents(run))
    assert set(charts(page)) >= {"front-flops"}
    assert not {"front-latency_ms", "latency-check"} & set(charts(page))
    assert "no network was timed" in words_of(page)
    assert "not finished" not in words_of(page)


def test_a_pick_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    spec = folder.spec.model_copy(update={"pick": "0" * 12})
    page = render(read_contents(RunFolder(folder.path, spec)))
    assert "The picked network is" not in words_of(page)


# -- damaged files ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OPTIONAL if name.endswith(".json")])
@pytest.mark.parametrize("content", ["{", "[1]", "7", "\udcff"])
def test_a_damaged_file_is_named(run: RunFolder, name: str, content: str) -> None:
    (run.path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DamagedRunError, match=re.escape(name)):
        write_report(run)
    assert not (run.path / "report.html").exists()


@pytest.mark.parametrize("name", ["observations.jsonl", "population.jsonl", "verification.jsonl"])
@pytest.mark.parametrize("line", ["{", "{}", "[]"])
def test_a_damaged_line_is_named(run: RunFolder, name: str, line: str) -> None:
    file = run.path / name
    file.write_text(f"{line}\n{file.read_text('utf-8')}", "utf-8")
    with pytest.raises(DamagedRunError, match=f"{name}, line 1"):
        read_contents(run)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("supernet/history.json", (0, "train_loss"), "2.5"),
        ("pruning.json", ("cuts", 0, "evidence", "lift", "ratio"), None),
        ("pruning.json", ("cuts", 0, "share"), "half"),
        ("pruning.json", ("kept", 0, "evidence", "observed_effect"), "x"),
        ("pareto.json", ("front", 0, "architecture", "encoder", "embed_dim"), -1),
        ("pareto.json", ("front", 0, "measured", "quality"), "low"),
        ("ranker/importances.json", ("encoder.embed_dim",), True),
        ("data.json", ("num_train",), "many"),
        ("latency/predictor.json", ("report", "chosen"), "nobody"),
    ],
)
def test_a_wrong_value_is_found(
    run: RunFolder, name: str, path: tuple[str | int, ...], value: object
) -> None:
    rewrite(run, name, path, value)
    with pytest.raises(DamagedRunError, match=re.escape(name)):
        read_contents(run)


@pytest.mark.parametrize("gene", [-1, 99])
def test_a_network_outside_the_space_is_found(run: RunFolder, gene: int) -> None:
    lines = run.read_journal("population.jsonl")
    lines[0]["genotypes"][0][0] = gene
    (run.path / "population.jsonl").unlink()
    run.append("population.jsonl", lines)
    with pytest.raises(DamagedRunError, match=r"population\.jsonl"):
        read_contents(run)


def test_a_cut_line_is_skipped_and_left_alone(run: RunFolder) -> None:
    before = read_contents(run)
    file = run.path / "observations.jsonl"
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"id": "12')
    size = file.stat().st_size
    assert read_contents(run).observed == before.observed
    assert file.stat().st_size == size


# -- scores of networks trained from scratch ------------------------------------------------------


def retrained_file(run: RunFolder) -> str:
    (file,) = run.path.glob("retrained/*/result.json")
    return file.relative_to(run.path).as_posix()


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ({}, "was right on 97.5 % of the test split"),
        ({"test_bleu": 31.237, "valid_bleu": 30.0}, "reached a BLEU of 31.24 on the test split"),
        (
            {"test_perplexity": 1234.5, "valid_perplexity": 9.0},
            "reached a perplexity of 1,234.50 on the test split",
        ),
        (
            {
                "test_perplexity": 12.3,
                "valid_perplexity": 9.0,
                "test_word_perplexity": 80.0,
                "test_bits_per_character": 1.5,
            },
            "of 12.30 (perplexity per word 80.00, bits per character 1.50) on the test split",
        ),
    ],
)
def test_the_score_that_the_task_is_known_by_is_told(
    run: RunFolder, scores: dict[str, float], told: str
) -> None:
    for name, value in scores.items():
        rewrite(run, retrained_file(run), (name,), value)
    text = words_of(render(read_contents(run))).replace("\u00a0", " ")
    assert told in text.replace(" ,", ",")


def test_results_of_schema_1_are_read(run: RunFolder) -> None:
    name = retrained_file(run)
    data = {k: v for k, v in run.read_json(name).items() if k not in ("task", "test_loss")}
    run.write_json(name, data | {"schema": 1})
    assert "97.5" in words_of(render(read_contents(run)))


@pytest.mark.parametrize("name", ["test_accuracy", "valid_accuracy", "valid_loss"])
def test_results_without_scores_are_damaged(run: RunFolder, name: str) -> None:
    file = retrained_file(run)
    run.write_json(file, {k: v for k, v in run.read_json(file).items() if k != name})
    with pytest.raises(DamagedRunError, match=re.escape(file)):
        read_contents(run)


def test_an_observation_without_quality_is_damaged(run: RunFolder) -> None:
    lines = run.read_journal("observations.jsonl")
    del lines[1]["quality"]
    (run.path / "observations.jsonl").unlink()
    run.append("observations.jsonl", lines)
    with pytest.raises(DamagedRunError, match=r"observations\.jsonl, line 2"):
        read_contents(run)


# -- text from files ----------------------------------------------------------------------------


def test_text_from_files_stays_text(run: RunFolder) -> None:
    rewrite(run, "ranker/report_card.json", ("notes",), [HOSTILE])
    rewrite(run, "ranker/report_card.json", ("ranker",), HOSTILE)
    rewrite(run, "ranker/importances.json", (HOSTILE,), 0.5)
    rewrite(run, "pareto.json", ("front", 0, "id"), HOSTILE)
    rewrite(run, "pruning.json", ("refused",), HOSTILE)
    rewrite(run, "pruning.json", ("cuts", 0, "choice"), HOSTILE)
    spec = run.spec.model_copy(update={"dataset": HOSTILE})
    page = render(read_contents(RunFolder(run.path, spec)))
    assert "<img" not in page
    assert page.count(html.escape(HOSTILE)) >= 5


def test_hovers_carry_no_markup_of_their_own(run: RunFolder) -> None:
    rewrite(run, "pareto.json", ("front", 0, "id"), HOSTILE)
    page = render(read_contents(run))
    assert html.escape(HOSTILE) in trace(page, "front-latency_ms", "front, measured")["text"][0]


# -- the front ----------------------------------------------------------------------------------


def test_the_front_is_drawn_where_it_was_measured(contents: RunContents) -> None:
    assert contents.front is not None
    drawn = trace(render(contents), "front-latency_ms", "front, measured")
    points = np.array([drawn["x"], drawn["y"]]).T
    np.testing.assert_allclose(points, contents.front.points()[:, ::-1], rtol=1e-5)


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
    run = finished_run(tmp_path / "run", objectives=names, limits={"flops": 9e6})
    page = render(read_contents(run))
    assert {"front-latency_ms", "front-params", "front-flops"} <= set(charts(page))
    drawn = charts(page)["front-latency_ms"]["data"]
    line = next(one for one in drawn if one["mode"] == "lines")
    assert non_dominated(np.array([line["x"], line["y"]]).T).all()
    assert len(line["x"]) < len(trace(page, "front-latency_ms", "front, measured")["x"])
    assert charts(page)["front-flops"]["layout"]["shapes"][0]["x0"] == 9e6
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
    profile = read_profile(run.path / "latency" / "profile.jsonl")
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


def test_of_a_long_front_the_ends_and_the_picked_one_are_drawn(contents: RunContents) -> None:
    assert contents.front is not None
    entry = contents.front.entries[0]
    many = [type(entry)(str(n), entry.architecture, {}, {}) for n in range(200)]
    shown = [one.id for one in _spread(many, many[101])]
    assert {"0", "101", "199"} <= set(shown)
    assert len(shown) <= MOST_SHOWN
    assert _spread(many[:5], None) == many[:5]


def test_top_features_have_share_and_direction(contents: RunContents) -> None:
    text = words_of(render(contents))
    assert "Genes that decide latency, all layers together." in text
    assert "number of layers" in text and "less helps" in text
    bare = replace(contents, features={})
    assert "The predictors are not fitted yet." in words_of(render(bare))


# -- pruning and reproduction -------------------------------------------------------------------


def test_cuts_are_told_with_their_evidence(contents: RunContents) -> None:
    text = words_of(render(contents))
    assert "2 choices cut." in text
    assert "number of layers = 4" in text
    assert "FFN size 128 in layer 2" in text
    assert "One of the best observed networks has it." in text


def test_what_pruning_needs_and_what_was_kept_on_request_is_told(run: RunFolder) -> None:
    before = words_of(render(read_contents(run)))
    assert "reaches a Kendall τ of 0.5 and 75.0 % of the pairs" in before.replace("\u00a0", " ")
    assert "Asked to be kept" not in before
    rewrite(run, "pruning.json", ("vetoes",), {"encoder.attention": ["omni"]})
    after = read_contents(run)
    assert "Asked to be kept: --keep encoder.attention=omni" in words_of(render(after))
    assert "--keep encoder.attention=omni" in search_command(after)


def test_a_refusal_is_told_with_its_reason(run: RunFolder) -> None:
    rewrite(run, "pruning.json", ("cuts",), [])
    rewrite(run, "pruning.json", ("refused",), "The ranker guesses.")
    assert "Nothing was cut. The ranker guesses." in words_of(render(read_contents(run)))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"objectives": ("quality", "flops", "params"), "limits": {"params": 20000.0}},
        {"preset": "smoke", "pick": "best", "seed": 11, "data": "a folder/x.npz"},
        {"limits": {"flops": 1234567.0, "latency_ms": 0.1 + 0.2}},
        {"quality": "bleu", "dataset": "synthetic"},
        {"keep": {"encoder.attention": ("linear", "omni"), "encoder.2.ffn_dim": (64,)}},
    ],
)
def test_the_command_asks_for_the_same_search(tmp_path: Path, values: dict[str, Any]) -> None:
    run = empty_run(tmp_path / "run", **values)
    assert spec_of(search_command(read_contents(run))).digest == run.spec.digest


def test_the_command_of_a_changed_space_names_the_file(tmp_path: Path) -> None:
    toml = dump_space(load_space("digits").restrict({"encoder.num_layers": [1]}))
    run = empty_run(tmp_path / "run", space_toml=toml)
    assert "--space run/space.toml" in search_command(read_contents(run))


def spec_of(command: str) -> SearchSpec:
    """What the options of a command ask for."""
    parts = shlex.split(command)[2:]
    given: dict[str, list[str]] = {}
    for option, value in zip(parts[::2], parts[1::2], strict=True):
        given.setdefault(option.removeprefix("--"), []).append(value)
    space = load_space(given["space"][0])
    limits = dict(item.split("=") for item in given.get("limit", []))
    overrides = dict(item.split("=") for item in given.get("set", []))
    generated = given.get("data") == ["synthetic"]
    return build_spec(
        space_toml=dump_space(space),
        dataset="synthetic" if generated else str(space.data["dataset"]),
        data=None if generated else given.get("data", [None])[0],  # type: ignore[list-item]
        device=given["device"][0],
        objectives=tuple(given["objectives"][0].split(",")),
        quality=given.get("quality", ["loss"])[0],
        limits={name: float(text) for name, text in limits.items()},
        preset=given["preset"][0],
        budget=budget_for(space, given["preset"][0], overrides),
        seed=int(given["seed"][0]),
        pick=given["pick"][0],
        keep=read_vetoes(space, given.get("keep", [])),
    )

"""The report is one page, complete, safe with hostile text, and says how to repeat the search."""

from __future__ import annotations

import html
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects
import pytest

from nas.report import write_report
from nas.report.page import render
from nas.report.pruning_section import pruning_section
from nas.report.ranking_section import features_section
from nas.report.summary_section import search_command
from nas.request.presets import budget_for
from nas.request.protected_choices import read_protected
from nas.request.spec import SearchSpec, Start, build_spec
from nas.results.contents import RunContents
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.run.layout import NOTHING
from nas.search.front import read_front
from search_spaces.loading import dump_space, load_space
from tests.support import report_cases
from tests.support.report_cases import charts, trace, words_of
from tests.support.run_fixture import empty_run, retrain, rewrite

SECTIONS = (
    "front baselines networks exchange omni features importances ranker latency pruning time "
    "training reproduce"
).split()
HOSTILE = '</script><img src=x onerror="alert(1)">'

finished, run, contents = report_cases.finished, report_cases.run, report_cases.contents


# -- the page as a whole ------------------------------------------------------------------------


def test_a_finished_run_has_every_section_and_lacks_nothing(contents: RunContents) -> None:
    page = render(contents)
    assert re.findall(r'<section id="([^"]*)">', page) == SECTIONS
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


def test_how_far_the_ranker_is_off_where_it_has_not_seen_the_answer(run: RunFolder) -> None:
    rewrite(run, "ranker/report_card.json", ("error",), 0.1234)
    text = words_of(render(read_contents(run)))
    assert "guesses of the validation loss were off by 0.123 (root mean square)" in text
    rewrite(run, "ranker/report_card.json", ("error",), None)
    assert "were off by" not in words_of(render(read_contents(run)))


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
    text = trace(page, "front-latency_ms", "front, measured")["text"][0]
    assert html.escape(HOSTILE, quote=False) in text


# -- pruning and reproduction -------------------------------------------------------------------


def test_top_features_have_share_and_direction(contents: RunContents) -> None:
    text = words_of(render(contents))
    assert "Genes that decide latency, all layers together." in text
    assert "number of layers" in text and "less helps" in text
    bare = replace(contents, features={})
    assert "The predictors were not fitted." in words_of(render(bare))


def test_cuts_are_told_with_their_evidence(contents: RunContents) -> None:
    text = words_of(render(contents))
    assert "2 choices cut." in text
    assert "number of layers = 4" in text
    assert "FFN size 128 in layer 2" in text
    assert "One of the best observed networks has it." in text


def test_of_a_rate_it_is_told_what_effects_are_in_and_what_helps(contents: RunContents) -> None:
    spec = contents.spec.model_copy(update={"objectives": ("quality", "tokens_per_s")})
    features = {"tokens_per_s": contents.features["latency_ms"]}
    rated = replace(contents, spec=spec, features=features)
    assert "effect on ms for one (tokens per second)" in words_of(pruning_section(rated))
    helps = "Helps always means a lower value, of tokens per second a higher one."
    assert helps in words_of(features_section(rated))
    assert "effect on latency" in words_of(pruning_section(contents))
    assert "means a lower value. The" in words_of(features_section(contents))


def test_what_pruning_needs_and_what_was_kept_on_request_is_told(run: RunFolder) -> None:
    before = words_of(render(read_contents(run)))
    assert "reaches a Kendall τ of 0.5 and 75.0 % of the pairs" in before.replace("\u00a0", " ")
    assert "Asked to be kept" not in before
    rewrite(run, "pruning.json", ("vetoes",), {"encoder.attention": ["omni"]})
    after = read_contents(run)
    assert "Asked to be kept: encoder.attention=omni" in words_of(render(after))
    assert "--keep encoder.attention=omni" in search_command(after)


def test_a_refusal_is_told_with_its_reason(run: RunFolder) -> None:
    rewrite(run, "pruning.json", ("cuts",), [])
    rewrite(run, "pruning.json", ("refused",), "The ranker guesses.")
    assert "Nothing was cut. The ranker guesses." in words_of(render(read_contents(run)))


@pytest.mark.parametrize(
    ("pick", "reason"),
    [("cheapest", "the lowest cost"), ("params<=1e9", "asked for with params ≤ 1e+09")],
)
def test_the_winner_is_told_with_why_it_was_picked(run: RunFolder, pick: str, reason: str) -> None:
    contents = read_contents(run)
    spec = contents.spec.model_copy(update={"pick": pick})
    assert f"({reason};" in words_of(render(replace(contents, spec=spec)))


def test_a_pick_that_nothing_meets_leads_to_another_network(contents: RunContents) -> None:
    spec = contents.spec.model_copy(update={"pick": "params<=1"})
    trained = replace(contents, spec=spec, name="my run")
    assert trained.unfinished == [] and "is not finished" not in words_of(render(trained))
    ended = {name: s for name, s in contents.seconds.items() if not name.startswith("retrain-")}
    text = words_of(render(replace(trained, seconds=ended)))
    assert "left to do: retrain a network of the front" in text
    assert "nas retrain 'my run' --pick knee" in text and "nas resume" not in text


def test_what_goes_on_with_a_run_can_be_typed_whatever_its_folder_is_called(
    contents: RunContents,
) -> None:
    text = words_of(render(replace(contents, name="my run", seconds={})))
    assert "nas resume 'my run'" in text


@pytest.mark.parametrize(("judged", "words"), [(100, ", of which 100 were used)"), (0, ")")])
def test_how_many_examples_judge(contents: RunContents, judged: int, words: str) -> None:
    budget = contents.spec.budget.model_copy(update={"valid_examples": judged})
    spec = contents.spec.model_copy(update={"budget": budget})
    assert f"287 to judge by{words}" in words_of(render(replace(contents, spec=spec)))


def test_a_layer_without_which_a_network_is_worth_no_number_is_told(contents: RunContents) -> None:
    assert contents.exchanges
    lost = replace(contents.exchanges[0], kind=NOTHING, values={})
    page = words_of(render(replace(contents, silenced=(lost,))))
    assert page.count("could not be evaluated") == 1
    assert "every one of these does something" in page


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"objectives": ("quality", "flops", "params"), "limits": {"params": 20000.0}},
        {"preset": "smoke", "pick": "best", "seed": 11, "data": "a folder/x.npz"},
        {"limits": {"flops": 1234567.0, "latency_ms": 0.1 + 0.2}},
        {"quality": "bleu", "dataset": "synthetic", "searcher": "nsga2"},
        {"keep": {"encoder.attention": ("linear", "omni"), "encoder.2.ffn_dim": (64,)}},
        {"baseline": "plain"},
    ],
)
def test_the_command_asks_for_the_same_search(tmp_path: Path, values: dict[str, Any]) -> None:
    run = empty_run(tmp_path / "run", **values)
    assert spec_of(search_command(read_contents(run))).digest == run.spec.digest


def test_the_command_names_the_checkpoint(tmp_path: Path) -> None:
    start = Start(folder="/models/a b", digest="0" * 64)
    run = empty_run(tmp_path / "run", start=start)
    assert "--from '/models/a b'" in search_command(read_contents(run))


def test_who_is_left_of_several_is_told_so(run: RunFolder) -> None:
    contents = read_contents(run)
    assert contents.picked is not None
    halved = replace(contents, halving_winner=contents.picked.id)
    assert "(chosen by how the candidates trained;" in words_of(render(halved))


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
        searcher=given.get("searcher", ["rank-evolve"])[0],
        limits={name: float(text) for name, text in limits.items()},
        preset=given["preset"][0],
        budget=budget_for(space, given["preset"][0], overrides),
        seed=int(given["seed"][0]),
        pick=given["pick"][0],
        keep=read_protected(space, given.get("keep", [])),
        baseline=None if given.get("baseline") == ["none"] else "plain",
    )

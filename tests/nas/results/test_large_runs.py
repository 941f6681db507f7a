"""Pages of runs with very many networks: small, exact where it counts, and read once."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from nas.results import partial_front as history
from nas.results.comparison import ComparedRun, compare_runs
from nas.results.contents import RunContents
from nas.results.partial_front import hypervolume_history, partial_front
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.search.front import pick, points_of
from nas.search.pareto import hypervolume, non_dominated
from search_spaces.errors import DataError
from service.api import run_cache
from service.api.run_cache import MOST_DRAWN, Kept, RunView, cached_networks, cached_run, sample
from service.dashboard import run_views
from service.dashboard.compare_views import fronts_drawing
from tests.support import dashboard_cases, large_run
from tests.support.dashboard_cases import said
from tests.support.report_cases import charts
from tests.support.service_cases import Server

LARGEST_PAGE = 1_500_000
FEWER = 2_000

server, done, alice = dashboard_cases.server, dashboard_cases.done, dashboard_cases.alice


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A search that goes on, with 20,000 observations and four objectives."""
    names = ("quality", "latency_ms", "params", "flops")
    path = tmp_path_factory.mktemp("runs") / "large"
    return large_run.large_run(path, ended=False, objectives=names)


@pytest.fixture(scope="module")
def contents(whole: RunFolder) -> RunContents:
    return read_contents(whole)


@pytest.fixture(scope="module")
def view(whole: RunFolder) -> RunView:
    return run_cache.read_run(whole)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RunFolder]]:
    """The runs that are read as a whole."""
    found: list[RunFolder] = []

    def read(folder: RunFolder) -> RunContents:
        found.append(folder)
        return read_contents(folder)

    monkeypatch.setattr(run_cache, "read_contents", read)
    yield found


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    calls: list[int] = []
    real: Callable[..., Any] = getattr(module, name)

    def count(*given: Any) -> Any:
        calls.append(len(given[0]))
        return real(*given)

    monkeypatch.setattr(module, name, count)
    return calls


# -- what is drawn ------------------------------------------------------------------------------


def test_a_page_of_twenty_thousand_networks_is_small(view: RunView) -> None:
    parts = [run_views.front_charts(view), run_views.choice_table(view, "0" * 20)]
    parts += [run_views.growth_chart(view), run_views.evidence(view)]
    assert view.observed == view.measured == large_run.MANY
    assert sum(len(part.encode()) for part in parts) < LARGEST_PAGE
    points = sum(len(one["x"]) for chart in charts(parts[0]).values() for one in chart["data"])
    assert points < 3 * 4 * MOST_DRAWN


def test_what_is_left_out_is_told(view: RunView) -> None:
    text = run_views.front_charts(view)
    drawn, most = len(view.contents.observed), run_cache.most_drawn(view.contents)
    assert most == 150 <= drawn <= most + len(view.contents.retrained) + len(view.contents.views)
    assert f"Of the 20,000 that were observed {drawn} are drawn." in text
    assert f"Of the {len(view.found.entries):,} networks of the front each chart shows" in text
    table = run_views.choice_table(view, "0" * 20)
    assert table.count("<input") <= run_views.MOST_LISTED + 2
    assert f"of the {len(view.found.entries):,} networks of the front" in table
    for address in ("front?format=csv", "front"):
        assert f'href="/api/v1/jobs/{"0" * 20}/{address}"' in table


@pytest.mark.parametrize("cost", ["latency_ms", "params", "flops"])
def test_the_line_of_the_front_is_exact(view: RunView, contents: RunContents, cost: str) -> None:
    front = partial_front(contents).entries
    points = np.array([[one.value(cost), one.value("quality")] for one in front])
    edge = points[non_dominated(points)]
    edge = edge[np.lexsort((-edge[:, 1], edge[:, 0]))]
    drawn = charts(run_views.front_charts(view))[f"front-{cost}"]["data"]
    (line,) = [one for one in drawn if one.get("line", {}).get("shape") == "hv"]
    np.testing.assert_allclose(np.array([line["x"], line["y"]]).T, edge, rtol=1e-5)


def test_the_whole_front_is_kept(view: RunView, contents: RunContents) -> None:
    assert view.found.entries == partial_front(contents).entries
    assert view.contents.front is not None
    assert view.contents.front.entries == view.found.entries


def test_what_the_request_picks_stays_picked(view: RunView) -> None:
    for how in ("best", "knee"):
        spec = view.contents.spec.model_copy(update={"pick": how})
        run = replace(view.contents, spec=spec)
        assert run.front is not None
        few = run_views.drawn(run, 20)
        assert few.picked == pick(run.front, how)
        assert few.front is not None and len(few.front.entries) < len(run.front.entries)


def test_a_small_run_is_drawn_as_a_whole(tmp_path: Path) -> None:
    folder = large_run.large_run(tmp_path / "run", 100)
    view = run_cache.read_run(folder)
    assert len(view.contents.observed) == view.observed == 100
    assert "are drawn" not in run_views.front_charts(view)
    assert "All of them" not in run_views.choice_table(view, "0" * 20)


def test_six_large_fronts_make_a_small_page(view: RunView) -> None:
    runs = [ComparedRun(f"front {number}", view.contents, None) for number in range(6)]
    assert len(fronts_drawing(compare_runs(runs)).encode()) < LARGEST_PAGE


@pytest.mark.parametrize(("count", "most"), [(1000, 10), (1000, 999), (11, 10), (10, 10), (0, 10)])
def test_a_sample_is_even_and_has_both_ends(contents: RunContents, count: int, most: int) -> None:
    entries = contents.observed[:count]
    found = sample(entries, most, {one.id for one in entries[3:4]})
    places = [entries.index(one) for one in found]
    assert places == sorted(places)
    assert min(count, most) <= len(found) <= most + 1
    if count:
        assert (places[0], places[-1]) == (0, count - 1)
        assert count < 4 or 3 in places


# -- how often it is worked out -----------------------------------------------------------------


def test_a_run_is_read_once_for_every_change(tmp_path: Path, reads: list[RunFolder]) -> None:
    folder = large_run.large_run(tmp_path / "run", FEWER)
    first = cached_run(folder)
    assert cached_run(RunFolder.open(folder.path)) is first
    folder.log(dashboard_event())
    (folder.path / "weights.pt").write_bytes(b"x")
    assert cached_run(folder) is first
    assert len(reads) == 1
    line = folder.read_journal("observations.jsonl")[0]
    folder.append("observations.jsonl", [line])
    assert cached_run(folder).observed == FEWER + 1
    assert len(reads) == 2
    (folder.path / "pareto.json").unlink()
    assert not cached_run(folder).final
    assert len(reads) == 3


def dashboard_event() -> Any:
    from nas.run.events import Note

    return Note("observe", "still there")


def test_a_network_that_is_not_drawn_is_found(tmp_path: Path, reads: list[RunFolder]) -> None:
    whole = large_run.large_run(tmp_path / "run", FEWER)
    view = cached_run(whole)
    lines = whole.read_journal("observations.jsonl")
    known = {one.id for one in (*view.contents.observed, *view.found.entries)}
    other = next(line["id"] for line in lines if line["id"] not in known)
    before = len(reads)
    found = cached_networks(whole, [other, "no such network"]).contents
    assert other in {one.id for one in found.observed}
    assert len(reads) == before + 1
    assert cached_networks(whole, [view.found.entries[0].id]) == view
    assert len(reads) == before + 1


def test_the_curve_takes_a_volume_only_where_the_front_has_grown(
    contents: RunContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = partial_front(contents)
    plain = plain_curve(contents)
    calls = counted(monkeypatch, history, "hypervolume")
    curve = hypervolume_history(contents, found)
    np.testing.assert_allclose(curve, plain, rtol=1e-12)
    assert len(calls) <= history.MOST_POINTS
    # A search that goes on for long without finding anything costs nothing more.
    again = (*found.measured, *found.measured[::-1])
    calls.clear()
    volumes = [v for _, v in hypervolume_history(contents, replace(found, measured=again))]
    assert len(calls) <= history.MOST_POINTS // 2 + 1
    assert len(set(volumes[len(volumes) // 2 :])) == 1


def plain_curve(contents: RunContents) -> list[tuple[int, float]]:
    """The slow twin: the volume of all networks up to each mark."""
    found = partial_front(contents)
    corner = np.array(history.reference(contents, found))
    points = points_of(found.measured, found.objectives) / corner
    marks = np.unique(np.round(np.linspace(1, len(points), history.MOST_POINTS))).astype(int)
    every = marks.tolist()
    return [(n, hypervolume(points[:n], np.ones(len(corner)))) for n in every]


def test_what_is_kept_stays_within_its_weight() -> None:
    kept: Kept[str] = Kept(10)
    made: list[str] = []

    def get(key: str, version: int = 0, weight: int = 4) -> str:
        def make() -> str:
            made.append(f"{key}{version}")
            return made[-1]

        return kept.get(key, version, make, lambda _: weight)

    assert [get("a"), get("b"), get("a"), get("c"), get("a")] == ["a0", "b0", "a0", "c0", "a0"]
    assert made == ["a0", "b0", "c0"]  # b was asked for longest ago and had to go
    assert get("a", 1) == "a1"
    assert kept.weight == 8
    assert get("d", weight=1000) == "d0"  # alone it is kept, or it would be made every time
    assert get("d", weight=1000) == "d0"
    assert (kept.weight, made[-1]) == (1000, "d0")
    get("e")
    assert kept.weight == 4


def test_the_collector_rests_until_the_last_reader_is_done():
    with run_cache.uncollected:
        with run_cache.uncollected:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(DataError), run_cache.uncollected:
        raise DataError("a file that cannot be read")
    assert gc.isenabled()


# -- over the wire ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(server: Server, done: str) -> str:
    """A job whose run has very many observations."""
    large_run.observe(RunFolder.open(server.settings.runs / done), FEWER)
    return done


def test_pages_of_a_large_job_are_read_once(
    server: Server, alice: httpx.Client, large: str, reads: list[RunFolder]
) -> None:
    text = said(alice.get(f"/jobs/{large}"))
    assert f"Of the {FEWER:,} that were observed" in text
    assert len(text.encode()) < LARGEST_PAGE
    said(alice.get(f"/jobs/{large}"))
    said(alice.get("/compare", params={"job": large}))
    assert alice.get(f"/jobs/{large}/curve.svg").status_code == 200
    clicked = re.findall(r"/networks/([0-9a-f]{12})", text)
    said(alice.get(f"/jobs/{large}/networks", params={"id": clicked[:2]}))
    client = server.client("alice")
    assert client.get(f"/jobs/{large}/architectures/{clicked[0]}").json()["on_front"]
    assert len(reads) <= 1
    lines = (server.settings.runs / large / "observations.jsonl").read_text("utf-8").splitlines()
    other = json.loads(lines[1])["id"]
    assert client.get(f"/jobs/{large}/architectures/{other}").json()["id"] == other
    assert other in said(alice.get(f"/jobs/{large}/networks", params={"id": other}))


def test_a_small_picture_is_sent_once(alice: httpx.Client, large: str) -> None:
    path = f"/jobs/{large}/curve.svg"
    first = alice.get(path)
    assert first.headers["cache-control"] == "private, no-cache"
    again = alice.get(path, headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert alice.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    last = re.search(r"curve\.svg\?event=(\d+)", said(alice.get("/")))
    assert last
    kept = alice.get(f"{path}?event={last[1]}")
    assert kept.headers["cache-control"] == "private, max-age=86400"
    other = alice.get(f"{path}?event={int(last[1]) - 1}")
    assert other.headers["cache-control"] == "private, no-cache"

"""Where a kind of attention overtakes softmax, as numbers, words and a page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latency.workload import Workload
from nas.profiling.attention_crossing import crossing_length, latencies_by_length
from nas.profiling.device_profile import DeviceProfile, WorkloadProfile, write_device_profile
from nas.report.length_charts import crossing_sentence
from nas.report.page import render
from nas.report.profile_page import render_profile, write_profile_report
from nas.results.reader import read_contents
from nas.run.layout import DEVICE_PROFILE_FILE
from nas.search.uniform_networks import kind_of
from search_spaces.loading import load_space, parse_space
from tests.support.pipeline_cases import edited
from tests.support.profile_cases import SPACE, made_profile, made_workload
from tests.support.run_fixture import finished_run


def by_kind(one: WorkloadProfile, length: int) -> WorkloadProfile:
    """The same networks at a length: softmax pays for its square."""
    cost = {"softmax": length**2 / 100, "linear": float(length), "omni": 0.5 * length}
    measured = tuple(
        replace(n, latency=replace(n.latency, value=n.latency.value * cost.get(kind or "", 1.0)))
        for n in one.measured
        for kind in [kind_of(n.architecture)]
    )
    workload = Workload(batch=4, source_length=length)
    return replace(one, workload=workload, measured=measured)


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    made = made_workload()
    lengths = (256, 16, 64, 1024)
    return replace(made_profile(), workloads=tuple(by_kind(made, n) for n in lengths))


def test_a_crossing_between_two_lengths_is_interpolated_as_a_power() -> None:
    assert crossing_length([10, 1000], [1.0, 100.0], [10.0, 10.0]) == pytest.approx(100)
    assert crossing_length([1, 2, 4], [1.0, 1.0, 4.0], [2.0, 0.5, 8.0]) is None
    assert crossing_length([1, 2, 4, 8], [1, 1, 1, 1], [2, 0.5, 2, 0.5]) == pytest.approx(2**2.5)


@pytest.mark.parametrize("fast", [[0.5, 0.5], [2.0, 2.0]])
def test_lines_that_do_not_cross(fast: list[float]) -> None:
    assert crossing_length([1, 2], [1.0, 1.0], fast) is None


def test_lengths_are_sorted_and_the_crossing_found(profile: DeviceProfile) -> None:
    (lines,) = latencies_by_length(profile)
    assert lines.lengths == (16, 64, 256, 1024)
    assert set(lines.latency_ms) == {"linear", "omni", "softmax"}
    linear, omni = lines.crossings
    # The planted times of the kinds differ a little at one shape, so the crossing is near 100.
    assert linear.kind == "linear" and linear.length == pytest.approx(100, rel=0.3)
    assert omni.length == pytest.approx(50, rel=0.3)
    assert "From about" in crossing_sentence(linear, lines)


def test_what_does_not_cross_is_told(profile: DeviceProfile) -> None:
    longer = [one for one in profile.workloads if one.workload.source_length >= 256]
    (lines,) = latencies_by_length(replace(profile, workloads=tuple(longer)))
    linear, _ = lines.crossings
    assert linear.length is None and linear.faster
    assert crossing_sentence(linear, lines).startswith("From 256 to 1024 tokens, linear")


@pytest.mark.parametrize(
    ("linear_ms", "said"),
    [
        ((1.0, 1.0, 1.0), "is faster than softmax."),
        ((3.0, 4.0, 5.0), "is not faster than softmax."),
        ((1.0, 2.0, 5.0), "is faster than softmax at some lengths, and is slower at 512 tokens."),
        ((3.0, 2.0, 5.0), "is faster than softmax at some lengths, and is slower at 512 tokens."),
    ],
)
def test_a_kind_that_is_faster_on_a_part_alone_is_told(
    profile: DeviceProfile, linear_ms: tuple[float, ...], said: str
) -> None:
    (lines,) = latencies_by_length(profile)
    times = {"softmax": (2.0, 3.0, 4.0), "linear": linear_ms}
    lines = replace(lines, lengths=(128, 256, 512), latency_ms=times)
    (crossing,) = lines.crossings
    sentence = crossing_sentence(crossing, lines)
    assert sentence == f"From 128 to 512 tokens, linear attention {said}"


def test_other_workloads_are_not_mixed_in(profile: DeviceProfile) -> None:
    other = replace(profile.workloads[0], workload=Workload(batch=8, source_length=16))
    assert len(latencies_by_length(replace(profile, workloads=(*profile.workloads, other)))) == 1
    assert latencies_by_length(replace(profile, workloads=(profile.workloads[0], other))) == []


def test_the_page_draws_it_and_needs_no_network(profile: DeviceProfile, tmp_path: Path) -> None:
    file = tmp_path / "board.html"
    write_profile_report(profile, file, SPACE)
    text = file.read_text(encoding="utf-8")
    assert "From about" in text and 'data-chart="chart-lengths-0"' in text
    assert "<title>board: device profile</title>" in text
    assert "default-src 'none'" in text
    assert render_profile(profile, SPACE) == text


def test_the_mark_stands_where_the_drawn_lines_cross(profile: DeviceProfile) -> None:
    page = str(render_profile(profile, SPACE))
    found = re.search(r'data-chart="chart-lengths-0">(.*?)</script>', page)
    assert found is not None
    drawn = json.loads(found[1])
    layout, lines = drawn["layout"], {trace["name"]: trace for trace in drawn["data"]}
    assert layout["xaxis"]["type"] == layout["yaxis"]["type"] == "log"
    marks = [shape["x0"] for shape in layout["shapes"]]
    for mark, kind in zip(marks, ("linear", "omni"), strict=True):
        heights = [height(lines[name], mark) for name in (kind, "softmax")]
        assert heights[0] == pytest.approx(heights[1], rel=1e-3)


def height(line: dict[str, list[float]], at: float) -> float:
    """Where a line that is straight on logarithmic axes is, between its points."""
    xs, ys = (np.log(line[name]) for name in "xy")
    return math.exp(np.interp(math.log(at), xs, ys))


NO_LENGTHS = {
    "images": (SPACE, "There is one length only: every image of this space has 4 patches."),
    "texts": (load_space("listops"), "--workload source=128 --workload source=256"),
    "one kind": (
        parse_space(edited(('["softmax", "linear", "omni"]', '["omni"]')), "space"),
        "all attention of this space is omni",
    ),
}


@pytest.mark.parametrize("what", NO_LENGTHS)
def test_one_length_says_what_is_missing(what: str) -> None:
    space, message = NO_LENGTHS[what]
    page = render_profile(made_profile(), space)
    assert message in page and ("--workload" in page) == (what == "texts")


def test_few_networks_are_judged_by_cross_validation() -> None:
    few = made_workload(samples=8)
    assert few.report["sizes"] == []
    page = render_profile(replace(made_profile(), workloads=(few,)), SPACE)
    assert ">8, cross-validated</td>" in page


def test_a_name_is_no_markup() -> None:
    page = render_profile(replace(made_profile(), name="<script>alert(1)</script>"), SPACE)
    assert "<script>alert" not in page


def test_the_report_of_a_search_with_the_profile_draws_it_too(
    profile: DeviceProfile, tmp_path: Path
) -> None:
    folder, drawn = finished_run(tmp_path / "run"), 'data-chart="chart-lengths-0"'
    assert drawn not in render(read_contents(folder))
    write_device_profile(folder.path / DEVICE_PROFILE_FILE, profile)
    assert drawn in render(read_contents(folder))

"""A page about a device: latency by length of each kind of attention, and the predictors."""

from __future__ import annotations

from pathlib import Path

from nas.profiling.attention_crossing import latencies_by_length
from nas.profiling.device_profile import CarriedProfile, WorkloadProfile
from nas.report import words
from nas.report.length_charts import length_charts
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.report.page import document
from search_spaces.files import write_atomically


def write_profile_report(profile: CarriedProfile, path: Path) -> None:
    """Write the page; one file that needs no network."""
    write_atomically(path, render_profile(profile))


def render_profile(profile: CarriedProfile) -> Html:
    """The page as text."""
    count = sum(len(one.measured) for one in profile.workloads)
    head = tag(
        "header",
        tag("h1", f"{profile.name}: latency in {profile.space_name}"),
        paragraph(
            f"{words.plural(count, 'timing')} on {profile.device.label}, "
            f"{'graphs by ' * (profile.device.runtime is not None)}torch "
            f"{profile.device.torch_version}."
        ),
    )
    body = join(head, _length_section(profile), _accuracy_section(profile))
    return document(f"{profile.name}: device profile", tag("main", body))


def _length_section(profile: CarriedProfile) -> Html:
    title = "Where linear attention overtakes softmax"
    if not latencies_by_length(profile):
        text = (
            "This takes workloads of two lengths or more, and a space with two kinds of attention: "
            "nas profile --workload source=128 --workload source=512 …"
        )
        return section("lengths", title, missing(text))
    return section("lengths", title, *length_charts(profile))


def _accuracy_section(profile: CarriedProfile) -> Html:
    tables = [_accuracy_table(one) for one in profile.workloads]
    return section("accuracy", "How far the predictors can be trusted", *tables)


def _accuracy_table(one: WorkloadProfile) -> Html:
    rows = [
        [cell(str(row["samples"]))]
        + [
            cell(text)
            for name in ("predictor", "linear", "depth")
            for text in (words.percent(row[name]["mape"]), f"{row[name]['kendall_tau']:.2f}")
        ]
        for row in one.report["sizes"]
    ]
    heads = ["samples", "error", "τ", "linear, error", "linear, τ", "depth, error", "depth, τ"]
    caption = (
        f"{one.workload.label}: mean relative error and Kendall τ on networks that were held out, "
        "by the number of networks fitted to. The profile's own predictors know "
        f"{words.plural(len(one.measured), 'network')}; in cross-validation they are off by "
        f"{words.percent(one.latency.report.mape)} in latency and "
        f"{words.percent(one.memory.report.mape)} in peak memory. The networks were chosen to be "
        "unlike each other, which makes these numbers larger than those of random networks."
    )
    return table(heads, rows, caption)

"""A page about a device: latency by length of each kind of attention, and the predictors."""

from __future__ import annotations

from pathlib import Path

from nas.profiling.attention_crossing import latencies_by_length
from nas.profiling.device_profile import DeviceProfile, WorkloadProfile
from nas.profiling.report import accuracy_rows, card_sentence
from nas.report import words
from nas.report.length_charts import length_charts
from nas.report.markup import Html, cell, join, missing, paragraph, section, table, tag
from nas.report.page import document
from nas.request.workloads import longest_source
from nas.search.doubtful import WHAT_TO_DO_THERE, predictor_off
from nas.search.uniform_networks import kinds
from search_spaces.files import write_atomically
from search_spaces.settings import ImageInput
from search_spaces.space import SearchSpace
from search_spaces.wording import of_commands


def write_profile_report(profile: DeviceProfile, path: Path, space: SearchSpace) -> None:
    """Write the page; one file that needs no network.

    Args:
        profile: what the page is about.
        path: the file; one that is there is replaced.
        space: that was profiled.
    """
    write_atomically(path, of_commands(render_profile(profile, space)))


def render_profile(profile: DeviceProfile, space: SearchSpace) -> Html:
    """The page of a profile of `space` as text."""
    count = sum(len(one.measured) for one in profile.workloads)
    head = tag(
        "header",
        tag("h1", f"{profile.name}: latency in {profile.space_name}"),
        paragraph(
            f"{words.plural(count, 'timing')} on {profile.device.label}, "
            f"{'graphs by ' * (profile.device.runtime is not None)}torch "
            f"{profile.device.torch_version}."
        ),
        *(paragraph(f"{text}.") for text in map(card_sentence, profile.workloads) if text),
    )
    body = join(head, _length_section(profile, space), _accuracy_section(profile))
    return document(f"{profile.name}: device profile", tag("main", body))


def _length_section(profile: DeviceProfile, space: SearchSpace) -> Html:
    title = "Where linear attention overtakes softmax"
    if not latencies_by_length(profile):
        return section("lengths", title, missing(_why_no_lengths(space)))
    return section("lengths", title, *length_charts(profile))


def _why_no_lengths(space: SearchSpace) -> str:
    if len(offered := kinds(space)) < 2:
        return f"There is nothing to compare: all attention of this space is {offered[0]}."
    if isinstance(space.model.input, ImageInput):
        patches = words.plural(space.model.input.num_tokens, "patch", "patches")
        return f"There is one length only: every image of this space has {patches}."
    longest = longest_source(space)
    return (
        "This takes workloads of two lengths or more: nas profile --workload "
        f"source={max(1, longest // 4)} --workload source={max(2, longest // 2)} …"
    )


def _accuracy_section(profile: DeviceProfile) -> Html:
    tables = [_accuracy_table(one) for one in profile.workloads]
    return section("accuracy", "How far the predictors can be trusted", *tables)


def _accuracy_table(one: WorkloadProfile) -> Html:
    rows = [
        [cell(head)]
        + [
            cell(text)
            for error, tau in scores.values()
            for text in (words.percent(error), f"{tau:.2f}")
        ]
        for head, scores in accuracy_rows(one)
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
    off = predictor_off(one.latency.report.mape, WHAT_TO_DO_THERE)
    warning = [] if off is None else [tag("p", off[0].upper() + off[1:] + ".", class_="warning")]
    return join(*warning, table(heads, rows, caption))

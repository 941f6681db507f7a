"""`nas profile`: what this device does with the networks of a space, as one file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from latency.workload import KEYS
from nas.console import options
from nas.console.commands.checked_spaces import checked_space
from nas.console.output import out, print_json, say, tell
from nas.console.tables import table
from nas.objectives import OBJECTIVES, QUALITY, TIMED, timed_workload
from nas.request.spec import Device
from nas.request.workloads import read_workload
from nas.run.termination import terminable
from nas.run.threads import use_threads
from nas.search.doubtful import WHAT_TO_DO_THERE, predictor_off
from search_spaces.errors import UsageError

if TYPE_CHECKING:
    from latency.workload import Workload
    from nas.profiling.device_profile import DeviceProfile, WorkloadProfile
    from nas.profiling.profile_device import ProfileRequest


WORKLOAD_KEYS = ", ".join(KEYS)


class Runtime(StrEnum):
    """What runs the networks."""

    torch = "torch"
    onnxruntime = "onnxruntime"


def profile(
    space: str = options.SPACE,
    device: Device = typer.Option("cpu", help="Which device of this machine."),
    name: str = typer.Option(
        None, metavar="NAME", help="What to call it in results.", show_default="the device's own"
    ),
    workload: list[str] = typer.Option(
        [],
        metavar="KEY=VALUE,…",
        help=f"What is timed, over the space's own: {WORKLOAD_KEYS}. "
        "Repeat it for several, such as source=256 and source=1024.",
        show_default="the space's own",
    ),
    samples: int = typer.Option(
        100, help="Networks to time for each workload, 8 to 4096; a smaller space is timed whole."
    ),
    out_file: Path = typer.Option(..., "--out", metavar="FILE", help="The profile to write."),
    report: Path = typer.Option(
        None,
        metavar="FILE",
        help="Also write a page that draws latency by length, and where linear attention "
        "overtakes softmax.",
    ),
    seed: int = typer.Option(0, min=0, max=2**31 - 1, help="Seed of everything random."),
    threads: int = typer.Option(
        None, min=1, help="CPU threads.", show_default="the space's quick preset's, or all cores"
    ),
    runtime: Runtime = typer.Option(
        Runtime.torch,
        help="What runs the networks: torch, or onnxruntime on their exported graphs, which makes "
        "a device of its own. Exporting takes from some seconds to a minute a network.",
    ),
    retime: bool = typer.Option(
        False, "--retime", help="Drop what the same command has timed before, and time it anew."
    ),
    quiet: bool = options.QUIET,
    as_json: bool = options.JSON,
) -> None:
    """Time networks on this device and fit predictors, for nas search --device-profile.

    The same command goes on where it was stopped. With another --report it writes that from the
    finished profile.
    """
    from nas.profiling.files import check_report
    from nas.request.presets import budget_for

    _check_threads(threads)
    if report is not None:
        check_report(report, out_file)
    chosen = checked_space(space)
    used = threads or budget_for(chosen, "quick", {}).threads
    use_threads(used)
    from nas.profiling.profile_device import ProfileRequest, profile_device  # imports torch

    asked: list[Workload | None] = [read_workload(chosen, text) for text in workload or ()]
    request = ProfileRequest(
        space=chosen,
        device=device,
        name=name,
        workloads=tuple(timed_workload(chosen, None, given) for given in asked or [None]),
        samples=samples,
        seed=seed,
        threads=used,
        runtime=runtime.value,
    )
    if retime:
        _drop(request, out_file)
    there = out_file.exists()
    with terminable():
        made = _followed(profile_device(request, out_file), quiet or as_json)
    if report is not None:
        from nas.report.profile_page import write_profile_report

        write_profile_report(made, report, chosen)
    if as_json:
        print_json(summary(made))
        return
    if there and not quiet:
        tell(f"{out_file} holds this profile already: nothing was timed")
    if not quiet:
        _show(made)
    for one in made.workloads:
        if off := predictor_off(one.latency.report.mape, WHAT_TO_DO_THERE):
            tell(f"WARNING: {one.workload.label}: {off}", "bold red")
    say(f"Profile {out_file}")
    if report is not None:
        say(f"Report  {report} (open it in a browser)")
    quoted, profile = shlex.quote(space), shlex.quote(str(out_file))
    say(f"Next    nas search --space {quoted} --device-profile {profile}{_objectives(made)}")


def _objectives(made: DeviceProfile) -> str:
    """The option of a search with a profile that holds nothing but work behind a context."""
    modes = {one.workload.mode for one in made.workloads}
    named = [name for name in TIMED if OBJECTIVES[name].mode in modes]
    if not modes <= {OBJECTIVES[name].mode for name in named}:
        return ""
    return f" --objectives {','.join([QUALITY, *named])}"


def _drop(request: ProfileRequest, out_file: Path) -> None:
    """Remove what was timed for a request before: the finished profile, or the journal of one.

    Raises:
        UsageError: for a file of something else, the journal of another request, or while another
            process makes it.
    """
    from nas.profiling.files import claimed, journal_path
    from nas.profiling.finished import finished_profile
    from nas.profiling.journal import refuse_another

    request.check()
    device = request.describe()
    identity, journal = request.to_json(device), journal_path(out_file)
    with claimed(out_file):
        finished_profile(out_file, {"name": request.name or device.label, **identity})
        refuse_another(journal, identity)
        journal.unlink(missing_ok=True)
        out_file.unlink(missing_ok=True)


def _check_threads(threads: int | None) -> None:
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise UsageError(
            f"--threads {threads} is more than the {cores} that this machine runs at once: give 1 "
            f"to {cores}, or leave it out"
        )


def _followed(steps: Iterator[Any], quiet: bool) -> DeviceProfile:
    from nas.profiling.device_profile import DeviceProfile

    for step in steps:
        if isinstance(step, DeviceProfile):
            return step
        if not quiet:
            tell(f"{step.workload.label}: {step.done} of {step.wanted} networks timed")
    raise AssertionError("profiling ended without a profile")


def _show(made: DeviceProfile) -> None:
    from nas.profiling.attention_crossing import latencies_by_length
    from nas.profiling.report import card_sentence
    from nas.report.length_charts import crossing_sentence

    for one in made.workloads:
        out().print(accuracy_table(one))
        if sentence := card_sentence(one):
            say(sentence)
    for lines in latencies_by_length(made):
        for crossing in lines.crossings:
            say(crossing_sentence(crossing, lines))


def accuracy_table(one: WorkloadProfile) -> Table:
    """Error and rank correlation by number of samples, beside the two baselines."""
    from nas.profiling.report import NAMES, accuracy_rows

    heads = ["samples", *(f"{name}\n{what}" for name in NAMES for what in ("MAPE", "τ"))]
    made = table(f"{one.workload.label}: held-out error of the latency predictor", heads, heads)
    for head, scores in accuracy_rows(one):
        cells = (text for e, tau in scores.values() for text in (_share(e), f"{tau:.3f}"))
        made.add_row(head, *cells)
    return made


def _share(error: float) -> str:
    """An error in percent; beyond ten times the latency its digits say nothing."""
    return f"{error:.1%}" if error < 10 else "> 999%"


def summary(made: DeviceProfile) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "name": made.name,
        "device": made.device.to_json(),
        "space": made.space_name,
        "digest": made.digest,
        "workloads": [
            {
                "workload": one.workload.to_json(),
                "samples": len(one.measured),
                "latency_predictor": one.latency.report.to_json(),
                "memory_predictor": one.memory.report.to_json(),
                "report": dict(one.report),
                **({} if one.host is None else {"host": one.host.to_json()}),
            }
            for one in made.workloads
        ],
    }

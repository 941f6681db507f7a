"""`nas cluster`: whether the hosts of a Ray cluster are fit for a search."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from nas.console import options
from nas.console.failures import FAILED
from nas.console.formatting import NOTHING
from nas.console.output import out, print_json, say, tell
from nas.console.tables import table
from nas.executors.base import LATENCY_PREFIX, ExecutorSettings
from nas.executors.cluster_faults import (
    About,
    Answer,
    ClusterFacts,
    Finding,
    HostFacts,
    judged,
)
from nas.executors.opening import check_installed
from nas.run.termination import terminable
from search_spaces.errors import UsageError
from supernet.data.manifest import FILE_NAME, read_manifest

# In a narrow terminal these go first, the first of them first.
SPARE = ["address", "Python", "Ray", "token", "object store", "shared memory", "nas", "torch"]


def check(
    ray_address: str = typer.Option(
        "auto",
        "--ray-address",
        metavar="auto|HOST:PORT",
        help=options.RAY_HELP,
    ),
    run: Path = typer.Option(
        None,
        "--run",
        metavar="DIR",
        help="The run folder of the search, or the folder above it: every host has to see and "
        "write it. A small file is written into it and removed again.",
    ),
    data: Path = typer.Option(
        None,
        "--data",
        metavar="DIR",
        help="The data of the search: every host has to see the same.",
        autocompletion=options.complete_data,
    ),
    as_json: bool = options.JSON,
) -> None:
    """Look at every host of a Ray cluster: one table, and one sentence for each fault.

    Versions, clock, run folder and data are compared with those of this machine; shared memory with
    Ray's object store, and the graphics cards that torch sees with those that Ray offers. Devices
    for timing and the token are looked at too. Exit code 1 when there is a fault; a note is none.
    """
    check_installed("nas cluster check")
    ExecutorSettings("ray", ray_address)  # refuses what is no address
    run_folder = None if run is None else _run_folder(run)
    data_path = None if data is None else _data_path(data)
    from nas.executors.ray_check import ANSWER_TIMEOUT_S, look_at_cluster  # imports Ray

    def asking(count: int) -> None:
        if not as_json:
            tell(f"asking {_hosts(count)}, for {ANSWER_TIMEOUT_S:g} s at most")

    # Ray prints what it notices meanwhile to stdout, where results belong.
    with terminable(), redirect_stdout(sys.stderr):
        facts = look_at_cluster(ray_address, run_folder, data_path, asking)
    found = judged(facts)
    faults = [one for one in found if one.severity == "fault"]
    notes = [one for one in found if one.severity == "note"]
    if as_json:
        told = {"faults": faults, "notes": notes}
        print_json(facts.to_json() | {name: [one.to_json() for one in told[name]] for name in told})
    else:
        out().print(_table(facts, faults))
        for one in (*faults, *notes):
            say(f"{one.severity:<8}{one.sentence}", "red" if one in faults else "")
        say(f"{_hosts(len(facts.hosts))}, {_faults(len(faults)) or 'no fault'}")
    if faults:
        raise typer.Exit(FAILED)


def _run_folder(path: Path) -> Path:
    """The whole path, as hosts are asked for it.

    Raises:
        UsageError: when there is no such folder on this machine.
    """
    folder = path.expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"--run {path} is no folder on this machine: make it first, or give the folder above it"
        )
    return folder.resolve()


def _data_path(path: Path) -> Path:
    """The same of data.

    Raises:
        UsageError: when there is nothing on this machine.
        DataError: when they are prepared, and damaged.
    """
    data = path.expanduser()
    if not data.exists():
        raise UsageError(
            f"--data {path} is not there on this machine: give the folder or file of data that the "
            "search is to have"
        )
    if (data / FILE_NAME).is_file():
        read_manifest(data)
    return data.resolve()


def _table(facts: ClusterFacts, faults: Sequence[Finding]) -> Table:
    """A line for each host; what is wrong is told below it."""
    wrong = {(one.node, one.about) for one in faults}
    count = Counter(one.node for one in faults)
    cells = _columns(facts, wrong)
    own: dict[str, Callable[[HostFacts], str]] = {
        "host": lambda one: one.name,
        "address": lambda one: one.address,
    }
    if facts.several_on_one_host:
        own["node"] = lambda one: one.short_node
    names = [*own, *cells, ""]
    spare = [name for name in SPARE if name in names]
    made = table("Ray cluster", names, whole=names[:-1], spare=spare)
    for host in facts.hosts:
        if host.answer is None:
            row, state = [NOTHING] * len(cells), "no answer"
        else:
            row = [cell(host, host.answer) for cell in cells.values()]
            state = _faults(count[host.node]) or "well"
        style = "red" if count[host.node] else "green"
        place = [cell(host) for cell in own.values()]
        made.add_row(*map(Text, [*place, *row]), Text(state, style))
    return made


def _columns(
    facts: ClusterFacts, wrong: Collection[tuple[str | None, About]]
) -> Mapping[str, Callable[[HostFacts, Answer], str]]:
    """Title → cell of all columns but those that name the host."""
    columns: dict[str, Callable[[HostFacts, Answer], str]] = {
        "Python": lambda _, answer: answer.versions.python,
        "nas": lambda _, answer: answer.versions.package or NOTHING,
        "Ray": lambda _, answer: answer.versions.ray,
        "torch": lambda _, answer: answer.versions.torch or NOTHING,
    }
    if facts.run is not None:
        columns["run folder"] = lambda _, answer: answer.run or NOTHING
    if facts.data is not None:
        columns["data"] = lambda host, answer: (
            "same" if (host.node, "data") not in wrong else "another" if answer.data else "missing"
        )
    return columns | {
        "clock": lambda _, answer: f"{answer.clock_ahead_s:+.2f} s",
        "shared memory": lambda _, answer: _gib(answer.shared_memory),
        "object store": lambda host, _: _gib(host.object_store),
        "GPUs": _gpus,
        "times": lambda host, _: _timed(host),
        "token": lambda _, answer: "yes" if answer.token else "no",
    }


def _gib(size: int | None) -> str:
    return NOTHING if size is None else f"{size / 2**30:.1f} GiB"


def _gpus(host: HostFacts, answer: Answer) -> str:
    """Those torch sees, of those Ray offers; one number where they are equal."""
    seen, offered = answer.cuda_devices, int(host.gpus)
    return str(seen) if seen == offered else f"torch {seen}, Ray {offered}"


def _timed(host: HostFacts) -> str:
    """The devices that are offered for timing."""
    names = sorted(one.removeprefix(LATENCY_PREFIX) for one in host.latency_resources)
    return ", ".join(names) or NOTHING


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def _faults(count: int) -> str:
    """In words; empty for none."""
    return "" if count == 0 else f"{count} fault{'' if count == 1 else 's'}"

"""A run on the screen while it works, and what it leaves there: front, winner, what to do next."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from nas.console.failures import explained
from nas.console.formatting import duration, test_score
from nas.console.listeners.targets import Target
from nas.console.output import out, say
from nas.console.progress import ProgressReporter
from nas.console.tables import retrained_table, show_front
from nas.results.baselines import sentences
from nas.results.state import RunState, read_state
from nas.run.events import Event
from nas.run.folder import RunFolder
from nas.run.layout import FRONT_FILE, REPORT_FILE
from nas.run.termination import terminable
from nas.search.doubtful import reason, shortfall_and_advice
from nas.search.front import pick


def follow(
    folder: RunFolder, run: Iterable[Event], screen: ProgressReporter, logs: Iterable[Target] = ()
) -> None:
    """Let a run work to its end, show what it tells and log it.

    Raises:
        typer.Exit: when it fails or is interrupted; the screen and the run are closed before.
    """
    with (
        explained(folder.path),
        terminable(),
        closing(_generator(run)) as working,
        screen,
        ExitStack() as stack,
    ):
        listeners = [stack.enter_context(log.listener(folder, screen.warn)) for log in logs]
        for event in working:
            screen.show(event)
            for listener in listeners:
                listener.hear(event)


def _generator(run: Iterable[Event]) -> Generator[Event, None, None]:
    yield from run


def show_results(folder: RunFolder, state: RunState | None = None) -> None:
    """Print the front and the networks trained from scratch, as far as there are any."""
    state = state or read_state(folder, thorough=False)
    console = out()
    if state.front is not None:
        show_front(state.front, state.picked)
    if state.retrained:
        console.print(
            retrained_table(
                state.retrained,
                folder.spec.trained.capitalize(),
                _roles(state, folder),
                state.front,
            )
        )
    if state.from_scratch:
        console.print(retrained_table(state.from_scratch, front=state.front))


def _roles(state: RunState, folder: RunFolder) -> dict[str, str]:
    """Network → what it is in the comparison of the winner with the baselines."""
    compared = {one.baseline.entry.id: one.label for one in state.comparisons(folder.spec)}
    return compared | ({state.picked: "winner"} if state.picked is not None else {})


def compared_lines(state: RunState, folder: RunFolder) -> list[str]:
    """See `nas.results.baselines.sentences`, and how well the search ordered what was trained."""
    if state.front is None:
        return []
    spec = folder.spec
    lines = sentences(spec, state.front, state.comparisons(spec), state.trained_winner(spec))
    order = state.order_sentence(spec)
    lines += [] if order is None else [order]
    return [f"{'':<7} {line}" for line in lines]


def duration_words(state: RunState) -> str:
    """What was told of a run's duration and what it took, or why nothing was; empty before that."""
    if state.duration is None:
        return ""
    why = state.duration.reason
    return f"not told: {why}" if why else state.told.sentence(duration)


def final_lines(folder: RunFolder, chosen: Sequence[str] = ()) -> list[str]:
    """Where the results are and what to type next.

    Args:
        folder: a finished run.
        chosen: ids of the networks to tell about; the picked one if there are none.
    """
    state = read_state(folder, thorough=False)
    run = shlex.quote(str(folder.path))
    word = "Trained" if chosen else "Winner"
    wanted: Sequence[str | None] = chosen or [state.picked]
    lines = [
        f"{word:<7} {result['id']}, test {test_score(result)}"
        for result in state.retrained
        if result.get("id") in wanted
    ]
    lines += [
        f"Scratch {result['id']}, test {test_score(result)}"
        for result in state.from_scratch
        if result.get("id") in wanted
    ]
    lines += compared_lines(state, folder)
    lines += [f"Warning {problem}" for problem in _shortfalls(state, folder)]
    lines += [f"Warning {problem}" for problem in _doubtful(state, wanted)]
    if state.unpicked and not chosen:
        lines.append(f"Warning {state.unpicked}")
    if words := duration_words(state):
        lines.append(f"Time    {words}")
    lines.append(f"Run     {folder.path}")
    if (folder.path / REPORT_FILE).exists():
        lines.append(f"Report  {folder.path / REPORT_FILE} (open it in a browser)")
    lines.append(f"Next    nas show {run}")
    trained = {result.get("id") for result in state.retrained}
    if state.front is not None and folder.spec.evaluator is None:
        others = [how for how in ("knee", "best") if pick(state.front, how).id not in trained]
        lines += [f"        nas retrain {run} --pick {how}" for how in others[:1]]
    return lines


def _shortfalls(state: RunState, folder: RunFolder) -> list[str]:
    """What to say of networks that learnt less on their own than they showed in the search."""
    entries = {entry.id: entry for entry in state.front.entries} if state.front else {}
    found = [
        shortfall_and_advice(
            folder.spec,
            entries[one["id"]],
            one.get("valid_loss"),
            one.get("asked_epochs"),
            str(folder.path),
        )
        for one in state.retrained
        if one.get("id") in entries
    ]
    return [problem for problem in found if problem]


def _doubtful(state: RunState, wanted: Sequence[str | None]) -> list[str]:
    """A sentence on each of the networks told about whose latency should not be believed."""
    entries = state.front.entries if state.front else ()
    return [
        f"{one.id} was not timed reliably: {reason(one.doubtful)}"
        for one in entries
        if one.id in wanted and one.doubtful
    ]


def result_json(folder: RunFolder) -> dict[str, Any]:
    """The last line of ``--json``: where the results are, and the networks trained."""
    state = read_state(folder, thorough=False)
    files = {"pareto": FRONT_FILE, "report": REPORT_FILE}
    paths = {name: folder.path / file for name, file in files.items()}
    return {
        "event": "Result",
        "run": str(folder.path),
        **{name: str(path) if path.exists() else None for name, path in paths.items()},
        "retrained": list(state.retrained),
        **({"from_scratch": list(state.from_scratch)} if state.from_scratch else {}),
    }


def finish(folder: RunFolder, chosen: list[str], quiet: bool, json_lines: bool) -> None:
    """Print the results the way it was asked for."""
    if json_lines:
        print_line(result_json(folder))
        return
    if not quiet:
        show_results(folder)
    for line in final_lines(folder, chosen):
        say(line)


def print_line(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()

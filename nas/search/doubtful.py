"""Sentences on numbers that should not be believed, in one place for all who write them.

A retrained network that learnt less on its own than it showed in the search is one: inherited
weights were learnt in wider and shallower networks and hide that it is hard to train alone; where
networks were trained alone before, the longer schedule may suit one less.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.objectives import LATENCY, QUALITY, TIMED
from nas.objectives.latency_limits import DOUBT
from nas.run.events import Note
from nas.search.front import FrontEntry
from search_spaces.wording import FORGET_SPEED, REPROFILE, RETIME, TUNE, mark

if TYPE_CHECKING:
    from nas.objectives.latency_limits import Timed
    from nas.request.spec import SearchSpec

# Relative error of predicted times above which a search by them makes no sense.
OFF = 0.5
SLOW = 0.1  # relative, from which on it is told that a machine has been faster

WHAT_TO_DO = (
    "keep other work away from the device and have it timed anew "
    f"({mark(RETIME, 'nas resume RUN --retime')}); if it stays so, have more networks timed "
    f"({mark('settings')} latency_samples=N)"
)
# Where the times are those of a device profile.
WHAT_TO_DO_THERE = (
    "keep other work away from the profiled device and make the profile anew "
    f"({mark(REPROFILE, 'nas profile --retime')}); if it stays so, with more samples"
)
# Stands behind a doubtful value; `doubtful_sentence` says below what it means.
MARK = " ?"


def disturbances(stage: str, timed: Timed[Any], predicted: bool = True) -> Iterator[Note]:
    """Notes on what other work cost a timing, if it did, and on a machine that was slow.

    Args:
        stage: of the timing.
        timed: what was found.
        predicted: whether the predictor was fitted to what was timed before.
    """
    if timed.shorter < 1:
        too_long = "; predictions of this run stay too long" if predicted else ""
        yield Note(
            stage,
            "the machine was slow when the first networks were timed, which nothing on it told: it "
            f"needs {timed.shorter:.2f} of that. Times from here on are right, and so are all in "
            f"the cache{too_long}",
            {"shorter": round(timed.shorter, 4)},
            loud=True,
        )
    if timed.slower - 1 > SLOW:
        yield Note(
            stage,
            f"the machine took {timed.slower:.2f} times what it has taken in earlier sessions, and "
            "times are told as it takes at its fastest; where it has become slower for good, "
            "forget how fast it was "
            f"({mark(FORGET_SPEED, 'nas cache list, nas cache clear')})",
            {"slower": round(timed.slower, 4)},
        )
    doubtful = sum(bool(value.doubtful) for value in timed.values)
    if not (timed.repeated or doubtful):
        return
    sessions = "1 session" if timed.repeated == 1 else f"{timed.repeated} sessions"
    message = f"other work disturbed the timing: {sessions} did not count"
    if timed.waited_s >= 1:
        message += f", and {timed.waited_s:.0f} s were spent waiting for a quiet machine"
    if doubtful:
        message += (
            f"; {'1 network stays' if doubtful == 1 else f'{doubtful} networks stay'} doubtful"
        )
    details = {"repeated": timed.repeated, "waited_s": round(timed.waited_s, 1)}
    yield Note(stage, message, details | {"doubtful": doubtful})


def unlike_the_others(
    stage: str, named: Sequence[tuple[str, float, float]], num_timed: int
) -> Note | None:
    """A note on networks that take otherwise than all others let expect; None without any.

    Args:
        stage: of the timing.
        named: id, measured and expected ms of each.
        num_timed: networks timed in all.
    """
    if not named:
        return None
    shown = ", ".join(f"{id} {ms:.3g} ms instead of {like:.3g}" for id, ms, like in named[:5])
    more = ", …" if len(named) > 5 else ""
    message = (
        f"{len(named)} of {num_timed} networks take otherwise than the others let expect, also "
        f"when timed again: {shown}{more}"
    )
    return Note(stage, message, {"unexpected": [id for id, _, _ in named]})


def predictor_off(mape: float, what_to_do: str = WHAT_TO_DO, what: str = "latency") -> str | None:
    """What is wrong with the predictor of a time, of that cross-validated relative error."""
    if mape <= OFF:
        return None
    return (
        f"the {what} predictor is off by {mape:.0%}, so that the search cannot tell fast networks "
        f"from slow ones: {what_to_do}"
    )


def predictions_off(entries: Iterable[FrontEntry]) -> str | None:
    """What is wrong where the networks that were timed take otherwise than was predicted.

    Args:
        entries: those without a measured and a predicted time are passed over, and so are
            doubtful ones.

    Returns:
        A sentence on the first of the times that is off; None where none is.
    """
    entries = list(entries)
    for name in TIMED:
        errors = [
            abs(entry.predicted[name] / entry.measured[name] - 1)
            for entry in entries
            if {name} <= entry.measured.keys() & entry.predicted.keys() and not entry.doubtful
        ]
        if len(errors) >= 2 and (middle := float(np.median(errors))) > OFF:
            what = "latencies" if name == LATENCY else f"values of {name}"
            return (
                f"the measured {what} of the best {len(errors)} networks are off by {middle:.0%} "
                f"in the median from what was predicted: {WHAT_TO_DO}"
            )
    return None


def doubtful_sentence(entries: Sequence[FrontEntry]) -> str | None:
    """A sentence on those of the networks that have doubtful values; None where none has."""
    found = [entry for entry in entries if entry.doubtful]
    if not found:
        return None
    many = "1 network was" if len(found) == 1 else f"{len(found)} networks were"
    return (
        f"{many} not timed reliably ({found[0].id}: {reason(found[0].doubtful)}): a doubtful "
        f"latency keeps only limits {DOUBT:g} times as large; have it timed anew when the "
        f"machine is at rest ({mark(RETIME, 'nas resume RUN --retime')})"
    )


def marked(text: str, name: str, doubtful: Collection[str]) -> str:
    """A value as it is written for people, with a mark where it is one of the doubtful ones."""
    return f"{text}{MARK}" if name in doubtful else text


def key(entries: Sequence[FrontEntry]) -> str | None:
    """What stands below values of which some may be marked: what the mark means, and why."""
    sentence = doubtful_sentence(entries)
    return None if sentence is None else f"{MARK.strip()} doubtful: {sentence}"


def reason(doubtful: Mapping[str, str]) -> str:
    """Why the values of a network are doubtful."""
    return "; ".join(doubtful.values())


# Losses of the search may be of a part of the validation split: that moves them a few percent.
TOLERANCE = 1.1


def loss_in_search(entry: FrontEntry) -> float | None:
    """The validation loss in nats that the search measured; None where it measured none."""
    return entry.measured.get("valid_loss", entry.measured.get(QUALITY))


def shortfall(
    spec: SearchSpec, entry: FrontEntry, loss: float | None, asked_epochs: int | None
) -> str | None:
    """Words for a network that learnt less on its own than it showed in the search, or None.

    Not for one that goes on with what it inherits, which no training makes worse by what it is
    judged by.

    Args:
        spec: of its search.
        entry: the network.
        loss: its validation loss after its own training; None is not judged.
        asked_epochs: that it was trained for in place of the run's; None for those.
    """
    shown = loss_in_search(entry)
    if spec.start is not None or loss is None or shown is None or loss <= TOLERANCE * shown:
        return None
    why = "its training does not suit it"
    if asked_epochs is not None:
        why = f"it trained for as many epochs as were asked for, {asked_epochs:,}"
    return (
        f"network {entry.id} learnt less on its own than it showed in the search: its validation "
        f"loss is {loss:.3f} and was {shown:.3f}; {why}"
    )


def shortfall_and_advice(
    spec: SearchSpec, entry: FrontEntry, loss: float | None, asked_epochs: int | None, run: str
) -> str | None:
    """The same, with what tries other settings on the run of that name, if not of epochs."""
    words = shortfall(spec, entry, loss, asked_epochs)
    if words is None or asked_epochs is not None:
        return words
    command = f"nas retrain {shlex.quote(run)} --pick {entry.id} --tune 8 --executor ray"
    return f"{words}; {mark(TUNE, f'try other settings: {command}')}"

"""The stage that exchanges the kind of attention of single layers of the picked network.

What the network loses, or saves, with another kind in one layer says what that layer's kind is
good for; what it loses without the layer's attention says whether that does anything at all.
Networks are evaluated as the observed ones were; costs are predicted, or counted where a formula
tells them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nas.executors.base import Failure
from nas.objectives import QUALITY
from nas.results.failures import failed
from nas.run.duration import EVALUATION, Asked, Part, Plan
from nas.run.evaluator import validation_quality
from nas.run.events import Event, Note, Progress
from nas.run.layout import EXCHANGES_FILE, NOTHING, SUPERNET_FILE, VERIFICATION_FILE
from nas.run.stages import kinds_to_exchange
from nas.search.front import pick, read_front
from nas.stages.base import Run
from nas.stages.observe import evaluating
from nas.stages.outcomes import to_event
from search_spaces.architecture import SKIP, Architecture
from search_spaces.errors import UsageError
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import largest
from supernet.building import build_supernet
from supernet.extraction import without_attention
from supernet.training.checkpoint import load

LEAST = 16
"""Exchanges that are evaluated even where the budget observes fewer networks than that."""


class Exchanged(NamedTuple):
    """A network with one layer's attention exchanged."""

    slot: str
    kind: str
    row: Genotypes


def work(run: Run) -> Iterator[Event]:
    """Evaluate the picked network with every other kind in every layer, one layer at a time.

    At most as many networks are evaluated as the budget lets the searcher observe, layers in order.
    What the search has evaluated already is not evaluated again. Where there is a supernet each of
    these layers is then left without its attention.
    """
    network = _picked(run)
    yield from _exchange(run, network)
    if network is not None and run.folder.has(SUPERNET_FILE):
        yield from _silence(run, network)


def _exchange(run: Run, network: Architecture | None) -> Iterator[Event]:
    exchanges = [] if network is None else exchanged(run.space, network)
    exchanges = exchanges[: max(LEAST, run.spec.budget.observations)]
    lines = run.folder.read_journal(EXCHANGES_FILE)
    done = {(line["slot"], line["kind"]) for line in lines if line["kind"] != NOTHING}
    missing = [one for one in exchanges if (one.slot, one.kind) not in done]
    if not missing or network is None:
        run.folder.append(EXCHANGES_FILE, [])
        yield Progress("exchange", len(done), len(done), _label(network))
        return
    # All are predicted together, for the last bits depend on how many they are.
    predicted = run.costs.predict(np.concatenate([one.row for one in exchanges]))
    costs = {
        (one.slot, one.kind): {name: float(values[number]) for name, values in predicted.items()}
        for number, one in enumerate(exchanges)
    }
    networks = run.space.decode(np.concatenate([one.row for one in missing]))
    known = _known(run)
    unknown = [one for one in networks if one.id not in known]
    outcomes = run.outcomes("exchange", unknown)
    for number, (one, changed) in enumerate(zip(missing, networks, strict=True), len(done) + 1):
        values, event = costs[one.slot, one.kind], None
        if changed.id not in known:
            while isinstance(outcome := next(outcomes), Note):
                yield outcome
            known[changed.id] = None if isinstance(outcome, Failure) else outcome[QUALITY]
            event = to_event("exchange", changed, outcome)
        if (quality := known[changed.id]) is not None:
            values = {**values, QUALITY: quality}
        line = {"of": network.id, "slot": one.slot, "kind": one.kind, "values": values}
        run.folder.append(EXCHANGES_FILE, [line])
        if event is not None:  # told once it is kept: whoever stops here does not evaluate it again
            yield event
        yield Progress("exchange", number, len(exchanges), _label(network))


def exchanged(space: SearchSpace, network: Architecture) -> list[Exchanged]:
    """A network with one layer's kind exchanged, for all layers and all kinds that they offer."""
    row = space.encode([network])
    active = space.active(row)[0]
    whole = np.where(active, row, space.completed(row))  # heads for layers that had no attention
    found = []
    for slot in kinds_to_exchange(space):
        column = space.slot_index[slot.name]
        for index, kind in enumerate(slot.choices):
            if active[column] and index != row[0, column]:
                changed = whole.copy()
                changed[0, column] = index
                found.append(Exchanged(slot.name, str(kind), space.canonical(changed)))
    return found


def _silence(run: Run, network: Architecture) -> Iterator[Event]:
    """Evaluate the network with each of these layers' attention adding nothing, in this process."""
    lines = run.folder.read_journal(EXCHANGES_FILE)
    done = {line["slot"] for line in lines if line["kind"] == NOTHING}
    row = run.space.encode([network])
    active = run.space.active(row)[0]
    there = []
    for slot in kinds_to_exchange(run.space):
        column = run.space.slot_index[slot.name]
        if active[column] and slot.choices[row[0, column]] != SKIP:
            there.append(slot)
    missing = [slot for slot in there if slot.name not in done]
    if not missing:
        return
    supernet = build_supernet(run.space)
    supernet.load_state_dict(load(run.folder.path / SUPERNET_FILE)["weights"])
    supernet.to(run.computes_on).eval()
    for number, slot in enumerate(missing, len(done) + 1):
        assert slot.layer is not None
        model = without_attention(supernet, network, slot.stack, slot.layer, slot.gene).network
        quality = validation_quality(
            run.quick_task, model, network, run.spec.quality, run.computes_on
        )[QUALITY]
        values = {QUALITY: quality} if math.isfinite(quality) else {}
        line = {"of": network.id, "slot": slot.name, "kind": NOTHING, "values": values}
        run.folder.append(EXCHANGES_FILE, [line])
        yield Progress("exchange", number, len(there), f"without {slot.name} of {network.id}")


def _picked(run: Run) -> Architecture | None:
    """The network that the request picks; None where the front is empty."""
    front = read_front(run.folder)
    if not front.entries:
        return None
    try:
        return pick(front, run.spec.pick).architecture
    except UsageError:  # of a condition that nothing on this front keeps, which retraining tells
        return None


def _known(run: Run) -> dict[str, float | None]:
    """Qualities that were observed or verified, by id; None where that failed."""
    found: dict[str, float | None] = {}
    for line in (*run.observations().values(), *run.folder.read_journal(VERIFICATION_FILE)):
        found[line["id"]] = None if failed(line) else line.get("measured", line)[QUALITY]
    return found


def _label(network: Architecture | None) -> str:
    return "there is no picked network" if network is None else f"of {network.id}"


def plan(asked: Asked) -> Plan:
    """How much there is to do at most: for a network of all layers."""
    space, spec = asked.spec.space, asked.spec
    row = largest(space)
    (network,) = space.decode(row)
    number = min(len(exchanged(space, network)), max(LEAST, spec.budget.observations))
    parts, what = evaluating(asked, number)
    if not spec.trains_alone:
        active = space.active(row)[0]
        layers = sum(bool(active[space.slot_index[one.name]]) for one in kinds_to_exchange(space))
        parts.append(Part(EVALUATION, layers))
    return Plan(f"up to {what}", tuple(parts))

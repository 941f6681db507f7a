"""Networks of a run as pages show them. Imported where it is used, like `run_views`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nas.report import doubtful, words
from nas.report.markup import Html, join, tag
from nas.report.network_pictures import card, key, widest_ffn
from nas.report.network_section import curve_section, layers_section, parts_section
from nas.report.omni_section import explanation, omni_view
from nas.results import training_curve
from nas.results.contents import RunContents
from nas.run.folder import RunFolder
from nas.run.layout import SUPERNET_FILE, weights_file
from nas.search.doubtful import shortfall
from nas.search.front import FrontEntry
from search_spaces.omni import omni_layers
from search_spaces.settings import ImageInput
from service.api.run_cache import RunView


@dataclass(frozen=True, slots=True)
class NetworkView:
    """One network as it is shown.

    Attributes:
        entry: the network.
        on_front: whether it is on the front of a search that has ended.
        card: its numbers and its picture.
        omni: what its omni layers look at, if that was measured.
        unseen: whether it has omni layers of which that is not known.
        weights: those that it can be exported with: ``trained``, ``inherited``.
    """

    entry: FrontEntry
    on_front: bool
    card: Html
    omni: Html
    unseen: bool
    weights: tuple[str, ...]


def network_views(view: RunView, wanted: Sequence[str]) -> list[NetworkView]:
    """Networks side by side; ids that the run does not know are left out."""
    run = view.contents
    found = [entry for identity in wanted if (entry := run.network(identity))]
    on_front = {entry.id for entry in run.front.entries} if run.front else set()
    widest = widest_ffn(run)
    return [
        NetworkView(
            entry,
            view.final and entry.id in on_front,
            card(run, entry, widest, _facts(run, entry)),
            omni_views(view, entry.id),
            can_be_looked_into(view, entry),
            _weights(view, entry),
        )
        for entry in found
    ]


def whole_page(view: RunView, folder: RunFolder, one: NetworkView) -> Html:
    """What a network's own page tells of it beside its card; nothing of networks of others."""
    run = view.contents
    if run.spec.evaluator is not None:
        return Html("")
    architecture = one.entry.architecture
    return join(
        curve_section(run, training_curve.training_curve(folder, one.entry.id)),
        parts_section(run, architecture),
        layers_section(architecture),
    )


def asked_with(run: RunContents) -> str | None:
    """What a network of a run can be asked with: ``picture`` or ``text``; None for nothing."""
    if run.spec.evaluator is not None or run.space.task == "embedding":
        return None
    return "picture" if isinstance(run.space.model.input, ImageInput) else "text"


def _facts(run: RunContents, entry: FrontEntry) -> Html:
    """Predicted beside measured, and what came of its own training."""
    known = dict.fromkeys((*words.METRICS, *run.costs))
    names = [name for name in known if name in entry.values]
    rows = [
        tag(
            "tr",
            tag("th", words.axis_label(run, name), scope="row"),
            tag(
                "td",
                doubtful.value(words.value(name, entry.measured.get(name)), name, entry),
                class_="number",
            ),
            tag("td", words.value(name, entry.predicted.get(name)), class_="number"),
        )
        for name in names
    ]
    for result in run.retrained:
        if result.id == entry.id:
            rows += [
                tag(
                    "tr",
                    tag("th", f"test {words.SCORES[name]}, {run.spec.trained}", scope="row"),
                    tag("td", words.score(name, number), class_="number"),
                    tag("td", "–", class_="number"),
                )
                for name, number in result.test_scores.items()
                if name in words.SCORES
            ]
    head = tag("tr", [tag("th", text, scope="col") for text in ("metric", "measured", "predicted")])
    return join(
        tag("table", tag("thead", head), tag("tbody", rows), class_="facts"),
        doubtful.explanation([entry]),
        _shortfall(run, entry),
    )


def _shortfall(run: RunContents, entry: FrontEntry) -> Html:
    """A warning where the network learnt less on its own than it showed in the search."""
    trained = next((one for one in run.retrained if one.id == entry.id), None)
    if trained is None:
        return Html("")
    problem = shortfall(run.spec, entry, trained.valid_scores["loss"], trained.asked_epochs)
    return (
        Html("")
        if problem is None
        else tag("p", problem[0].upper() + problem[1:] + ".", class_="warning")
    )


def _weights(view: RunView, entry: FrontEntry) -> tuple[str, ...]:
    files = {
        "trained": weights_file(entry.id),
        "inherited": SUPERNET_FILE,
    }
    return tuple(name for name, file in files.items() if (view.path / file).is_file())


def omni_views(view: RunView, identity: str) -> Html:
    """What the omni layers of a network look at; nothing where that was not measured."""
    run = view.contents
    found = [omni_view(one, run.spec.trained) for one in run.views if one.id == identity]
    return join(explanation(), found) if found else Html("")


def can_be_looked_into(view: RunView, entry: FrontEntry) -> bool:
    """Whether a network has omni layers to look into that nobody has looked into yet."""
    known = any(one.id == entry.id for one in view.contents.views)
    if view.contents.spec.evaluator is not None:
        return False
    return not known and bool(omni_layers(entry.architecture, view.contents.space.model.omni_span))


def colour_key(run: RunContents) -> Html:
    """What the colours of the pictures mean; nothing where none is drawn."""
    return key(run.space) if run.spec.evaluator is None else Html("")

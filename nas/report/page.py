"""The whole page: one file that needs no network and no server."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from nas.report.baseline_section import baseline_section
from nas.report.checkpoint_section import checkpoint_section
from nas.report.cost_section import failures_section, time_section, training_section
from nas.report.exchange_section import exchange_section
from nas.report.front_section import front_section
from nas.report.markup import Html, join, tag
from nas.report.network_pictures import networks_section
from nas.report.omni_section import omni_section
from nas.report.pruning_section import pruning_section
from nas.report.ranking_section import (
    card_section,
    features_section,
    importances_section,
    latency_section,
)
from nas.report.summary_section import headline, reproduce_section
from nas.results.contents import RunContents
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.run.layout import REPORT_FILE
from search_spaces.files import write_atomically
from search_spaces.wording import of_commands

# The page may run and show what is in it, and fetch nothing at all.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)

CHAPTERS = {
    "front": "Front",
    "baselines": "Better than what?",
    "networks": "Networks",
    "exchange": "Exchanges",
    "omni": "Omni layers",
    "features": "Top features",
    "importances": "What decides",
    "ranker": "Ranker",
    "latency": "Latency",
    "pruning": "Pruning",
    "time": "Cost",
    "training": "Training",
    "reproduce": "Again",
}


def write_report(folder: RunFolder) -> Path:
    """Write ``report.html``: everything about a run, readable without it.

    The same folder gives the same bytes. Parts that the run has not reached say so.

    Args:
        folder: a run, finished or not.

    Returns:
        The file.

    Raises:
        DamagedRunError: for a file of the run that cannot be read, naming it.
    """
    path = folder.path / REPORT_FILE
    write_atomically(path, of_commands(render(read_contents(folder))))
    return path


def render(run: RunContents) -> Html:
    """The page as text."""
    if run.spec.evaluator is not None:
        return _external_page(run)
    main = tag(
        "main",
        headline(run),
        _navigation(run),
        front_section(run),
        baseline_section(run),
        checkpoint_section(run),
        networks_section(run),
        exchange_section(run),
        omni_section(run),
        features_section(run),
        importances_section(run),
        card_section(run),
        latency_section(run),
        pruning_section(run),
        time_section(run),
        training_section(run),
        failures_section(run),
        reproduce_section(run),
    )
    return document(f"{run.space.name}: architecture search", main)


def _external_page(run: RunContents) -> Html:
    """The page of a search whose networks an evaluator of others knows: what makes sense of it."""
    gone = {"baselines", "exchange", "omni", "latency", "training"}
    chapters = [name for name in CHAPTERS if name not in gone]
    main = tag(
        "main",
        headline(run),
        tag(
            "nav",
            join([tag("a", CHAPTERS[one], href=f"#{one}") for one in chapters]),
            aria_label="Sections",
        ),
        front_section(run),
        networks_section(run),
        features_section(run),
        importances_section(run),
        card_section(run),
        pruning_section(run),
        time_section(run),
        failures_section(run),
        reproduce_section(run),
    )
    return document(f"{run.spec.domain.name}: architecture search", main)


def document(title: str, main: Html) -> Html:
    """A whole page with everything it needs, charts included."""
    no_script = tag("noscript", tag("p", "The charts need JavaScript; tables do not."))
    body = tag("body", no_script, main, _script(plotly_source()), _script(part("page.js")))
    page = tag("html", _head(title), body, lang="en")
    return Html(f"<!DOCTYPE html>\n{page}\n")


def _head(title: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(part("page.css"))),
    )


def _navigation(run: RunContents) -> Html:
    links = [tag("a", name, href=f"#{anchor}") for anchor, name in CHAPTERS.items()]
    if run.spec.start is not None:
        links.insert(1, tag("a", "Checkpoint", href="#checkpoint"))
    return tag("nav", join(links), aria_label="Sections")


def _script(source: str) -> Html:
    return tag("script", Html(source))


def part(name: str) -> str:
    """The text of ``page.css`` or ``page.js``."""
    return resources.files("nas.report").joinpath(name).read_text("utf-8")


def plotly_source() -> str:
    """The script that draws charts, out of the installed package."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())

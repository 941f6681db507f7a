"""`nas show RUN --attention ID`: what a network's omnidirectional layers look at."""

from __future__ import annotations

from nas.console.output import out, print_json, say, tell
from nas.console.tables import table
from nas.run.folder import RunFolder
from nas.run.omni_views import OmniLayer, OmniViews, check_omni, read_views
from nas.run.threads import use_threads
from nas.search.front import pick, read_front
from search_spaces.errors import DamagedRunError


def show_attention(folder: RunFolder, how: str, as_json: bool) -> None:
    """Print the shares of each layer, as tables or JSON.

    Raises:
        UsageError: for a network that is not on the front or has no such layer.
    """
    entry = pick(read_front(folder), how)
    check_omni(entry.architecture, folder.spec.space.model.omni_span)
    views = _up_to_date(folder, entry.id)
    if as_json:
        print_json(views.to_json())
        return
    say(f"{views.id}, weights {views.weights}, means over {views.examples} validation examples")
    for layer in views.layers:
        _print_layer(layer)


def _up_to_date(folder: RunFolder, identity: str) -> OmniViews:
    """The views, measured first where there are none or where they are of other weights."""
    retrained = folder.record(f"retrain-{identity}") is not None
    try:
        found = read_views(folder, identity)
    except DamagedRunError:
        found = None
    if found is None or retrained != (found.weights == "trained from scratch"):
        tell(f"measuring the omni layers of {identity} …")
        use_threads(folder.spec.budget.threads)
        from nas.stages.attention import measure_views  # imports torch

        for _ in measure_views(folder, identity):
            pass
        found = read_views(folder, identity)
    assert found is not None
    return found


def _print_layer(layer: OmniLayer) -> None:
    names = [f"layer {source}" if source else "embeddings" for source in layer.sources]
    made = table(f"{layer.name} looks at", ["share of", *names], right=names)
    made.add_row("attention", *map(_percent, layer.attended))
    if len(layer.by_head) > 1:
        for number, shares in enumerate(layer.by_head, start=1):
            made.add_row(f"  head {number}", *map(_percent, shares))
    made.add_row("pooling", *map(_percent, layer.pooling))
    out().print(made)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

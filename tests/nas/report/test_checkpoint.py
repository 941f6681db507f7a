"""The report of a search that began with a checkpoint: what became of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nas.report.checkpoint_section import checkpoint_section, compared, rows_of
from nas.report.front_section import cost_chart
from nas.report.network_section import curve_section
from nas.report.omni_section import omni_view
from nas.report.page import render
from nas.request.spec import Start
from nas.results.contents import Origin, Retrained, RunContents, Stretch
from nas.results.retrained_points import retrained_points
from nas.run.omni_views import OmniViews
from nas.search.front import FrontEntry
from tests.support import report_cases
from tests.support.report_cases import trace, words_of

contents, finished = report_cases.contents, report_cases.finished


@pytest.fixture
def begun(contents: RunContents) -> RunContents:
    """As if the digits had begun with a checkpoint: a slow one with one layer more."""
    picked = contents.picked
    assert picked is not None and picked.architecture.encoder is not None
    stack = picked.architecture.encoder
    network = replace(
        picked.architecture,
        encoder=replace(stack, layers=(*stack.layers, replace(stack.layers[0], ffn_dim=1))),
    )
    values = {name: 2 * value for name, value in picked.values.items()}
    entry = FrontEntry(network.id, network, {**values, "quality": 0.01}, {})
    count = len(stack.layers) + 1
    order = (count - 1, *range(count - 1))
    errors = {f"{n}.{kind}": 0.125 + n for n in range(count) for kind in ("linear", "omni")}
    start = Start(folder="/somewhere/my-vit", digest="0" * 64)
    spec = contents.spec.model_copy(update={"start": start})
    return replace(contents, spec=spec, origin=Origin("my-vit", entry, order, errors))


def test_without_a_checkpoint_there_is_no_such_section(contents: RunContents) -> None:
    assert checkpoint_section(contents) == ""
    assert "#checkpoint" not in render(contents)


def test_before_it_is_taken_over(begun: RunContents) -> None:
    assert "was not taken over." in checkpoint_section(replace(begun, origin=None))
    assert 'href="#checkpoint"' in render(begun)


def test_networks_stand_beside_it(begun: RunContents) -> None:
    assert begun.origin is not None
    first, picked, tuned = rows_of(begun, begun.origin)
    assert (first.what, picked.what, tuned.what) == (
        "the checkpoint",
        "picked, as inherited",
        "fine-tuned",
    )
    assert tuned.values["quality"] == 0.0625  # the validation loss of the result
    sentence = compared(begun, first, tuned)
    assert "latency 2.00 × faster" in sentence and "loss +0.0525" in sentence
    page = words_of(checkpoint_section(begun))
    assert "my-vit" in page and "2.00 × faster" in page


def test_each_layer_is_told(begun: RunContents) -> None:
    """The network keeps the layer that matters most, the last, and lacks the one that does not."""
    assert begun.origin is not None and begun.picked is not None
    page = words_of(checkpoint_section(begun))
    assert page.count("dropped") == 1
    count = len(begun.origin.layer_order)
    dropped = sorted(set(range(count)) - set(begun.origin.layer_order[: count - 1]))
    assert dropped == [count - 2]
    assert "0.125" in page and f"{count - 1}.125" in page


def test_losses_stand_by_distance(begun: RunContents) -> None:
    assert begun.origin is not None and "tokens ago" not in checkpoint_section(begun)
    told = {
        "repeats": (Stretch(0, 0, 345, 3.25), Stretch(9, 32, 7, 0.5), Stretch(33, None, 2, 9.0)),
        "positions": (Stretch(1, 8, 5, 1.0),),
    }
    less = {"repeats": told["repeats"][:1], "positions": ()}
    (one,) = begun.retrained
    origin, tuned = replace(begun.origin, by_distance=told), replace(one, by_distance=less)
    text = words_of(checkpoint_section(replace(begun, origin=origin, retrained=(tuned,))))
    assert "network weights never 9–32 over 32 tokens 345 7 2" in text, text
    own = f"{origin.entry.id} the checkpoint 3.250 0.500 9.000"
    assert f"{own} {one.id} fine-tuned 3.250" in text
    assert "network weights 1–8 tokens 5" in text


def test_networks_that_keep_nothing_have_no_table_of_it(begun: RunContents) -> None:
    assert "State that each network keeps" not in checkpoint_section(begun)


def test_an_order_that_turned_round_is_told(begun: RunContents) -> None:
    assert "Where 3 or more" in checkpoint_section(begun)
    assert begun.front is not None
    some = begun.front.entries[:4]
    worse = sorted(some, key=lambda entry: -entry.measured["quality"])

    def tuned(entry: FrontEntry, loss: float) -> Retrained:
        scores = {"loss": loss, "accuracy": 0.9}
        return Retrained(entry.id, entry.architecture, "accuracy", scores, scores, 3, 0)

    results = tuple(tuned(entry, 0.1 * number) for number, entry in enumerate(worse))
    told = replace(begun, retrained=results)
    page = words_of(checkpoint_section(told))
    assert f"The order of {len(some)} networks" in page and "Kendall's τ -1.00" in page
    assert told.retrained_order is not None and told.retrained_order.sentence in page


def test_scores_without_what_was_searched_for_are_told_without_it(begun: RunContents) -> None:
    """As older runs have them whose test split has no recalled token."""
    spec = begun.spec.model_copy(update={"quality": "recall_nats"})
    lacking = replace(begun, spec=spec)
    assert "recall_nats" not in lacking.retrained[0].valid_scores
    assert lacking.retrained[0].id in words_of(checkpoint_section(lacking))
    assert lacking.origin is not None
    (*_, tuned) = rows_of(lacking, lacking.origin)
    own = {f"valid_{name}" for name in lacking.retrained[0].valid_scores}
    assert "quality" not in tuned.values
    assert {name for name in tuned.values if name.startswith("valid_")} == own
    assert retrained_points(lacking) == []


def test_the_command_can_be_typed_whatever_the_folder_is_called(begun: RunContents) -> None:
    text = words_of(checkpoint_section(replace(begun, name="my run")))
    assert "nas retrain 'my run' --pick ID" in text


def test_it_is_a_mark_on_each_chart(begun: RunContents) -> None:
    assert begun.origin is not None
    for cost in begun.costs:
        page = cost_chart(begun, cost)
        mark = trace(page, f"front-{cost}", "the checkpoint")
        assert mark["y"] == [0.01] and mark["customdata"] == [begun.origin.entry.id]


def test_it_is_found_by_its_id(begun: RunContents) -> None:
    assert begun.origin is not None
    assert begun.network(begun.origin.entry.id) == begun.origin.entry
    assert replace(begun, origin=None).network(begun.origin.entry.id) is None


def test_what_is_trained_is_called_fine_tuned(begun: RunContents, contents: RunContents) -> None:
    views = OmniViews("0" * 12, "trained from scratch", 64, ())
    assert "Fine-tuned; means over 64" in omni_view(views, begun.spec.trained)
    assert "Trained from scratch; means" in omni_view(views, contents.spec.trained)
    assert "It was not fine-tuned yet." in curve_section(begun, [])
    assert "It was not trained from scratch yet." in curve_section(contents, [])
    assert "from scratch" not in words_of(render(begun))

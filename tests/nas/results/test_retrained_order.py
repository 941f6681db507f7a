"""How well the order of a search holds once its networks are trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.console.commands.results import final_lines
from nas.objectives import QUALITIES
from nas.report.front_section import order_chart
from nas.results.reader import read_contents
from nas.results.retrained_order import retrained_order
from nas.search.front import read_front
from tests.nas.search.test_front import entry, front
from tests.support.run_fixture import finished_run, retrain, rewrite

SIX = front(*(entry(0.1 * place, 100 - 10 * place) for place in range(1, 7)))
LOSS = QUALITIES["loss"]


def trained(*losses: float) -> dict[str, dict[str, float]]:
    pairs = zip(SIX.entries, losses, strict=False)
    return {one.id: {"loss": loss, "accuracy": 0.5} for one, loss in pairs}


def test_orders_are_compared_and_the_trained_front_is_found() -> None:
    same = retrained_order(SIX, LOSS, trained(1, 2, 3, 4, 5, 6), {})
    assert same is not None and same.kendall_tau == pytest.approx(1.0) and len(same.front) == 6
    assert same.interval is not None and 0.4 < same.interval[0] < 1.0
    turned = retrained_order(SIX, LOSS, trained(6, 5, 4, 3, 2, 1), {})
    assert turned is not None and turned.kendall_tau == pytest.approx(-1.0)
    assert turned.front == (SIX.entries[-1].id,)  # the cheapest is the best
    few = retrained_order(SIX, LOSS, trained(1, 3, 2), {})
    assert few is not None and few.kendall_tau == pytest.approx(1 / 3)
    assert "Kendall's τ 0.33 (too few for an interval)" in few.sentence


@pytest.mark.parametrize("losses", [(), (1.0, 2.0), (1.0, 1.0, 1.0)])
def test_too_few_and_ties_say_nothing(losses: tuple[float, ...]) -> None:
    assert retrained_order(SIX, LOSS, trained(*losses), {}) is None
    other = {one.id: {"kl": 1.0} for one in SIX.entries}  # trained by an older version
    assert retrained_order(SIX, LOSS, other, {}) is None


def test_command_and_report_tell_it(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    assert not any("Kendall" in line for line in final_lines(run))
    assert order_chart(read_contents(run)) == ""
    for place, one in enumerate(read_front(run).entries[:4]):
        retrain(run, one)
        rewrite(run, f"retrained/{one.id}/result.json", ["valid_loss"], 0.1 + 0.1 * place)
    found = read_contents(run).retrained_order
    assert found is not None and found.kendall_tau > 0.5
    assert any(found.sentence in line for line in final_lines(run))
    assert "retrained-order" in order_chart(read_contents(run))


def test_networks_are_compared_that_were_trained_for_as_long_as_most() -> None:
    ids = [entry.id for entry in SIX.entries]
    scores = trained(1, 2, 3, 4, 5, 0.5)
    found = retrained_order(SIX, LOSS, scores, {ids[5]: 80})
    assert found is not None and found.ids == tuple(ids[:5])
    assert found.kendall_tau == pytest.approx(1.0)
    assert retrained_order(SIX, LOSS, scores, dict.fromkeys(ids, 80)) == retrained_order(
        SIX, LOSS, scores, {}
    )

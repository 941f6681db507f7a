"""Exchanging attention kinds in the picked network: which networks, what is kept and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas.report.exchange_section import exchange_section, idle_places, idle_share
from nas.results.contents import Exchange
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.run.layout import EXCHANGES_FILE, NOTHING
from nas.run.opened import OpenedRun
from nas.search.front import pick, read_front
from nas.stages.base import Run
from nas.stages.exchange import exchanged, work
from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.loading import load_space
from tests.support.pipeline_cases import finished_once
from tests.support.pretrained_cases import offering


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_once(tmp_path_factory.mktemp("exchange") / "run")


def test_every_layer_gets_every_other_kind_and_nothing_else_changes() -> None:
    space = load_space("digits")
    layers = (EncoderLayer("softmax", 2, 8), EncoderLayer("omni", 4, 16))
    found = exchanged(space, Architecture(EncoderStack(16, layers)))
    assert [(one.slot, one.kind) for one in found] == [
        ("encoder.0.attention", "linear"),
        ("encoder.0.attention", "omni"),
        ("encoder.1.attention", "softmax"),
        ("encoder.1.attention", "linear"),
    ]
    (network,) = space.decode(found[0].row)
    assert network == Architecture(EncoderStack(16, (EncoderLayer("linear", 2, 8), layers[1])))


def test_a_layer_that_gets_attention_gets_the_most_heads() -> None:
    space = offering(load_space("digits"), "attention", "softmax", "skip")
    layers = EncoderLayer("skip", 1, 8), EncoderLayer("softmax", 2, 8)
    found = exchanged(space, Architecture(EncoderStack(16, layers)))
    networks = space.decode(np.concatenate([one.row for one in found]))
    assert [one.encoder.layers for one in networks if one.encoder is not None] == [
        (EncoderLayer("softmax", 4, 8), layers[1]),
        (layers[0], layers[0]),
    ]


def test_a_space_of_one_kind_has_nothing_to_exchange() -> None:
    space = load_space("wikitext103")
    network = Architecture(decoder=DecoderStack(1152, (DecoderLayer("softmax", 8, 3072),) * 10))
    assert exchanged(space, network) == []


def test_the_picked_network_is_exchanged_layer_by_layer(run: RunFolder) -> None:
    network = pick(read_front(run), run.spec.pick)
    lines = [line for line in run.read_journal(EXCHANGES_FILE) if line["kind"] != NOTHING]
    wanted = exchanged(run.spec.space, network.architecture)
    assert [(line["slot"], line["kind"]) for line in lines] == [(o.slot, o.kind) for o in wanted]
    assert {line["of"] for line in lines} == {network.id}
    assert all(line["values"]["quality"] > 0 and line["values"]["flops"] > 0 for line in lines)


def test_what_was_cut_short_goes_on_to_the_same_bytes(run: RunFolder) -> None:
    path = run.path / EXCHANGES_FILE
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:1]))
    list(work(Run(run)))
    assert path.read_bytes() == whole


def test_the_report_shows_each_exchange(run: RunFolder) -> None:
    contents = read_contents(run)
    page = exchange_section(contents)
    picked = contents.picked
    assert picked is not None and picked.architecture.encoder is not None
    assert page.count("as it is") == len(picked.architecture.encoder.layers)
    without = len(contents.silenced)
    assert page.count("validation loss ") == 2 + len(contents.exchanges) + without
    assert without == len(picked.architecture.encoder.layers)


def test_a_layer_without_attention_is_judged_too(run: RunFolder) -> None:
    """The numbers are those of a network whose layer passes on what it is given."""
    network = pick(read_front(run), run.spec.pick).architecture
    lines = [line for line in run.read_journal(EXCHANGES_FILE) if line["kind"] == NOTHING]
    assert network.encoder is not None
    assert [line["slot"] for line in lines] == [
        f"encoder.{number}.attention" for number in range(len(network.encoder.layers))
    ]
    opened = OpenedRun(run)
    block = opened.supernet.encoder.blocks[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(block.attention), "forward", _adds_nothing(block.attention))
        found = opened.quality(network)
    assert lines[0]["values"]["quality"] == pytest.approx(found["quality"], abs=1e-6)


def _adds_nothing(silent: Any) -> Any:
    real = type(silent).forward

    def forward(self: Any, x_BND: Any, *rest: Any, **more: Any) -> Any:
        return 0 * x_BND if self is silent else real(self, x_BND, *rest, **more)

    return forward


def test_a_layer_without_which_quality_is_no_number_ends_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_once(tmp_path / "run")
    lines = run.read_journal(EXCHANGES_FILE)
    run.write_journal(EXCHANGES_FILE, [line for line in lines if line["kind"] != NOTHING])
    qualities = iter([float("nan"), *[1.5] * len(lines)])
    monkeypatch.setattr(
        "nas.stages.exchange.validation_quality", lambda *_: {"quality": next(qualities)}
    )
    list(work(Run(run)))
    first, *others = read_contents(run).silenced
    assert first.values == {} and all(one.values == {"quality": 1.5} for one in others)
    assert [one.slot for one in (first, *others)] == [
        line["slot"] for line in lines if line["kind"] == NOTHING
    ]
    list(work(Run(run)))  # it is not evaluated again
    assert read_contents(run).silenced == (first, *others)


def test_an_attention_that_does_nothing_is_named(run: RunFolder) -> None:
    contents = read_contents(run)
    picked, front = contents.picked, contents.front
    assert picked is not None and front is not None
    contents = replace(contents, front=replace(front, reference=(9.0,) * len(front.objectives)))
    quality = picked.values["quality"]
    lazy = Exchange(picked.id, "encoder.0.attention", NOTHING, {"quality": quality + 1e-9})
    busy = replace(lazy, values={"quality": quality + 0.5})
    changed = replace(contents, silenced=(lazy,))
    assert list(idle_places(changed, picked)) == ["encoder.0.attention"]
    assert "layer 1: attention: " in exchange_section(changed)
    assert idle_share(3.0, 7.8) == pytest.approx(0.03 / 7.8)  # of a large vocabulary: 1 % of a loss
    assert idle_share(0.5, 0.3) == 0.01 and idle_share(0.0, 7.8) == 0.0001
    assert "none was evaluated in layer 1" not in exchange_section(changed)
    short = tuple(one for one in changed.exchanges if one.slot != "encoder.0.attention")
    assert "none was evaluated in layer 1: attention" in exchange_section(
        replace(changed, exchanges=short)
    )
    assert "every one of these does something" in exchange_section(
        replace(contents, silenced=(busy,))
    )

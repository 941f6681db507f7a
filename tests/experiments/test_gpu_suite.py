"""The study of a graphics card: what it counts and shows; its times need a card."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from experiments import gpu_suite, gpu_updates
from experiments.gpu_kernels import KINDS, kernel_times
from experiments.gpu_updates import full_batch, update_times
from nas.request.presets import budget_for
from search_spaces.loading import load_space
from tests.support.study_cases import printed

UPDATE = {
    **{"space": "wmt14", "what": "supernet, 0123", "tokens": 4096, "batches": 1, "ms": 60.0},
    **{"tera_operations": 3.8, "share": 0.41, "busy_ms": 30.0, "kernels": 1600, "waits": 1},
    "gibibytes": 8.0,
}
KERNEL = {"operator": "linear:elu", "length": 2048, "forward_ms": 0.5, "both_ms": None}
NUMBERS: dict[str, Any] = {
    **{"device": "A card", "gibibytes": 40.0, "torch": "2.13", "updates": [UPDATE]},
    "kernels": [KERNEL],
    "latency": [{"workload": "dtype=bfloat16", "told": "error 2 %"}],
    "searches": [{"options": "--space digits", "seconds": 61.2, "told": "the front"}],
}


def test_everything_is_shown() -> None:
    text = printed(gpu_suite.show(NUMBERS))
    for part in ("A card", "41.0%", "1,600", "linear:elu", "0.5", "error 2 %", "61 s", "the front"):
        assert part in text


@pytest.mark.parametrize(
    ("changed", "kept"),
    [({}, True), ({"share": 0.39}, False), ({"waits": 2}, False), ({"share": None}, True)],
)
def test_the_marks(changed: dict[str, Any], kept: bool) -> None:
    assert gpu_suite.met({"updates": [UPDATE | changed]}) is kept
    assert gpu_suite.met({"updates": [UPDATE | changed | {"what": "nn.Transformer", "share": 0}]})


def test_without_a_card_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_suite.STUDY.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["multi30k", "python-source"])
def test_updates_of_all_sorts_are_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor, where they are not timed."""
    found = []

    def made(update: Any, space: Any, settings: Any, what: str, operations: float) -> Any:
        update()
        found.append((what.split(",")[0], operations))
        return what

    monkeypatch.setattr(gpu_updates, "_timed", made)
    rows = list(update_times(name, "smoke", device="cpu", accumulate=2, max_tokens=256))
    assert [what for what, _ in found] == ["supernet", "supernet", "alone", "nn.Transformer"]
    assert len(rows) == 4 and all(operations > 0 for _, operations in found)
    assert found[1][1] == found[2][1]


def test_a_full_batch_has_no_padding() -> None:
    space = load_space("wmt14")
    settings = budget_for(space, "standard", {}).supernet
    batch = full_batch(space, settings)
    assert batch.source.shape == (136, 30) and batch.target_mask.all()
    assert not torch.equal(batch.source, full_batch(space, settings, 1).source)


def test_every_kernel_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments import gpu_kernels

    monkeypatch.setattr(gpu_kernels, "TOKENS", 128)
    monkeypatch.setattr(gpu_kernels, "median_ms", lambda call: float(bool(call() is None)))
    monkeypatch.setattr(gpu_kernels, "autocast", partial(torch.autocast, "cpu", torch.bfloat16))
    times = kernel_times([64], device="cpu")
    ours = [one for one in times if ":" not in one.operator or one.operator in KINDS]
    assert len(ours) == len(KINDS) and all(one.both_ms == 1.0 for one in ours)

"""A network beside the checkpoint that its search began with, in words."""

from __future__ import annotations

import pytest

from nas.results.beside_checkpoint import beside_checkpoint, ratio


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("latency_ms", 8.0, 5.0, "1.60 × faster"),
        ("latency_ms", 5.0, 8.0, "1.60 × slower"),
        ("kv_cache_mb", 100.0, 43.0, "0.43 of it"),
        ("tokens_per_s", 100.0, 150.0, "1.50 × as many"),
        ("params", 0.0, 0.0, "as it was"),
        ("full_attention_layers", 6.0, 0.0, "0 where its own is 6"),
        ("full_attention_layers", 6.0, 3.0, "0.50 of it"),
        ("kv_cache_mb", 0.5, 0.0, "0 MB where its own is 0.5"),
    ],
)
def test_ratios(name: str, before: float, after: float, words: str) -> None:
    assert ratio(name, before, after) == words


def test_quality_and_what_is_known_of_the_costs_are_told() -> None:
    before = {"quality": 2.5, "latency_ms": 8.0, "kv_cache_mb": 100.0, "params": 9.0}
    after = {"quality": 2.4567, "latency_ms": 4.0, "kv_cache_mb": 43.0}
    assert beside_checkpoint("loss", ["latency_ms", "kv_cache_mb", "params"], before, after) == (
        "the winner's loss is 2.457 where its own is 2.5, latency 2.00 × faster, cache 0.43 of it"
    )

"""The arithmetic of a search on rented GPUs, and that the page says what it gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.cluster_cost import (
    Gpu,
    compared,
    gpu_hours,
    main,
    stages,
    table,
    update_seconds,
    workbook,
)
from tests.pipeline_cases import ROOT

BOOK, GPU = workbook("wmt14"), Gpu()
PAGE = (ROOT / "docs" / "cluster.md").read_text("utf-8")


def test_the_operations_are_counted_from_the_budget() -> None:
    supernet = BOOK.budget.supernet
    rows = {row.stage: row for row in stages(BOOK, GPU, 8, 8)}
    tokens = supernet.max_updates * supernet.max_tokens
    assert rows["supernet"].operations == pytest.approx(3 * BOOK.token_flops * tokens)
    assert gpu_hours(list(rows.values()), 8) == pytest.approx(
        8 * sum(row.hours for row in rows.values())
    )


def test_a_faster_gpu_is_faster_where_it_computes_and_not_where_it_waits() -> None:
    fast = replace(GPU, peak=1e3 * GPU.peak)
    training = BOOK.budget.supernet
    waits = update_seconds(BOOK, training, fast, 1)
    assert GPU.step_s < waits < update_seconds(BOOK, training, GPU, 1)
    quick = replace(fast, step_s=0.0)
    assert update_seconds(BOOK, training, quick, 1) < 0.5 * waits


def test_more_gpus_help_where_there_are_batches_to_go_round() -> None:
    eight = workbook("wmt14", 8)
    one, many = (update_seconds(eight, eight.budget.supernet, GPU, n) for n in (1, 8))
    assert many < one / 5
    small = [update_seconds(BOOK, BOOK.budget.supernet, GPU, n) for n in (1, 8)]
    assert small[1] > small[0] / 2


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    assert len(lines) > 20
    assert [line for line in lines if line not in PAGE] == []
    assert " ".join(compared(workbook("wmt14-hat"), GPU).split()) in " ".join(PAGE.split())
    assert table(BOOK, replace(GPU, peak=1e15), 8, 8).splitlines()[-1] not in PAGE

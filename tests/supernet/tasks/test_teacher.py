"""Networks that write tokens are compared with what a frozen one says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.run.evaluator import validation_quality
from search_spaces.errors import UsageError
from search_spaces.loading import parse_space
from supernet import loss as loss_module
from supernet.building import build_supernet
from supernet.loss import IGNORED, summed_divergence
from supernet.tasks import language_modelling, teacher
from supernet.tasks.evaluation import evaluate, score
from supernet.tasks.opening import open_task
from supernet.tasks.teacher import Teacher, worth_keeping
from tests.support.task_cases import SPACES, networks_of, task_of, with_memory
from tests.support.trained_cases import LANGUAGE

SPACE = SPACES["language_modelling"]
ENOUGH = {"tokens": 1000, "parameters": 10**7, "device": "cpu", "free_bytes": 2**40}


def slow_divergence(teacher_PC: Any, logits_PC: Any, labels_P: Any) -> float:
    """Number by number, from the definition."""
    total = 0.0
    for told, said, label in zip(teacher_PC, logits_PC, labels_P, strict=True):
        if label == IGNORED:
            continue
        p, q = (np.exp(np.float64(one) - max(one)) for one in (told, said))
        p, q = p / p.sum(), q / q.sum()
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return total


@pytest.mark.parametrize("numbers", [1, 40, 1 << 20])
def test_it_is_what_the_definition_says(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "DIVERGENCE_NUMBERS", numbers)
    generator = torch.Generator().manual_seed(1)
    told, said = (3 * torch.randn(23, 17, generator=generator) for _ in range(2))
    labels = torch.randint(0, 17, (23,), generator=generator)
    labels[[0, 7, 22]] = IGNORED
    right = slow_divergence(told.tolist(), said.tolist(), labels.tolist())
    assert summed_divergence(told, said, labels).item() == pytest.approx(right, rel=1e-5)
    assert summed_divergence(said, told, labels).item() != pytest.approx(right, rel=1e-2)
    assert summed_divergence(told, told + 5.0, labels).item() == pytest.approx(0.0, abs=1e-4)
    assert summed_divergence(told, told, labels) == 0.0
    assert summed_divergence(told, said, torch.full((23,), IGNORED)) == 0.0
    assert math.isnan(summed_divergence(told, said * float("nan"), labels).item())


def made(scratch: Path | None) -> tuple[Any, Any, Any, list[int]]:
    """A task beside a teacher, a supernet, two networks, and how often the teacher was loaded."""
    loads: list[int] = []
    torch.manual_seed(3)
    model, (first, second) = build_supernet(SPACE), networks_of(SPACE, 2)

    def load() -> tuple[Any, Any]:
        loads.append(1)
        torch.manual_seed(4)
        return build_supernet(SPACE), first

    task = task_of("language_modelling").with_valid(9).beside(Teacher(load, scratch))
    return task, model, (first, second), loads


def test_each_network_has_its_mean_over_all_tokens(tmp_path: Path) -> None:
    task, model, networks, loads = made(None)
    torch.manual_seed(4)
    frozen = build_supernet(SPACE).eval()
    plain = task_of("language_modelling").with_valid(9)
    for network in networks:
        told = list(plain.evaluation(frozen, networks[0], plain.valid, "cpu"))
        said = list(plain.evaluation(model.eval(), network, plain.valid, "cpu"))
        with torch.inference_mode():
            right = sum(
                slow_divergence(a.logits.tolist(), b.logits.tolist(), b.labels.tolist())
                for a, b in zip(told, said, strict=True)
            )
        found = evaluate(task, model, network, task.valid)
        assert found.kl == pytest.approx(right / found.count, rel=1e-4) and found.kl > 0.01
        assert found.loss == evaluate(plain, model, network, plain.valid).loss
    assert evaluate(task, frozen, networks[0], task.valid).kl == 0.0
    assert evaluate(plain, model, networks[0], plain.valid).kl is None
    assert loads == [1]


def test_kept_logits_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_modelling, "EVALUATION_TOKENS", 64)  # several batches
    monkeypatch.setattr(teacher, "worth_keeping", lambda *_, **__: True)
    kept, model, networks, _ = made(tmp_path / "scratch")
    worked, *_ = made(None)
    assert len(list(worked.evaluation(model, networks[0], worked.valid, "cpu"))) > 2
    right = [evaluate(worked, model, one, worked.valid) for one in networks]
    assert [evaluate(kept, model, one, kept.valid) for one in networks] == right
    assert len(kept._teacher._kept) == 1 and worked._teacher._kept == []
    monkeypatch.setattr(Teacher, "_first_time", None)  # from now on it only reads
    assert [evaluate(kept, model, one, kept.valid) for one in networks] == right
    assert list((tmp_path / "scratch").iterdir()) == []  # it has no name


def test_what_is_read_once_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "worth_keeping", lambda *_, **__: True)
    kept, model, networks, _ = made(tmp_path / "scratch")
    evaluate(kept, model, networks[0], replace(kept.valid))  # as a test split is opened
    assert kept._teacher._kept == [] and not (tmp_path / "scratch").exists()


def test_a_full_disk_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_modelling, "EVALUATION_TOKENS", 64)
    monkeypatch.setattr(teacher, "worth_keeping", lambda *_, **__: True)
    kept, model, networks, _ = made(tmp_path / "scratch")
    worked, *_ = made(None)
    opened = teacher.tempfile.TemporaryFile

    def full(**given: Any) -> Any:
        return open("/dev/full", "wb", buffering=0) if given else opened()

    monkeypatch.setattr(teacher.tempfile, "TemporaryFile", full)
    found = evaluate(kept, model, networks[0], kept.valid)
    assert found == evaluate(worked, model, networks[0], worked.valid)
    assert kept._teacher._kept == []


def test_half_a_pass_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_modelling, "EVALUATION_TOKENS", 64)
    monkeypatch.setattr(teacher, "worth_keeping", lambda *_, **__: True)
    task, model, networks, _ = made(tmp_path)
    begun = task.evaluation(model, networks[0], task.valid, "cpu")
    next(begun)
    begun.close()
    assert task._teacher._kept == []
    evaluate(task, model, networks[0], task.valid)
    fewer = task.with_valid(3)
    assert evaluate(fewer, model, networks[1], fewer.valid).count < len(task.valid)
    assert len(task._teacher._kept) == 2  # each split has its own


def test_what_is_cheaper_is_done() -> None:
    assert worth_keeping(vocabulary=8_000, **ENOUGH)  # type: ignore[arg-type]
    assert not worth_keeping(vocabulary=200_000, **ENOUGH)  # type: ignore[arg-type]
    larger = ENOUGH | {"parameters": 10**9}
    assert worth_keeping(vocabulary=200_000, **larger)  # type: ignore[arg-type]
    assert not worth_keeping(vocabulary=200_000, **larger | {"device": "cuda"})  # type: ignore[arg-type]
    assert not worth_keeping(vocabulary=200_000, **larger | {"tokens": 10**6})  # type: ignore[arg-type]
    assert not worth_keeping(vocabulary=8_000, **ENOUGH | {"free_bytes": 10**8})  # type: ignore[arg-type]


def test_it_is_a_quality_and_a_score(tmp_path: Path) -> None:
    task, model, (network, _), _ = made(tmp_path)
    plain = evaluate(task, model, network, task.valid)
    found = validation_quality(task, model, network, "kl", "cpu")
    assert found["quality"] == found["valid_kl"] == plain.kl
    assert found["valid_loss"] == plain.loss
    assert score(task, model, network, task.valid).values["kl"] == plain.kl
    assert "kl" not in score(task_of("language_modelling"), model, network, task.valid).values


@pytest.mark.parametrize("name", ["classification", "translation"])
def test_other_tasks_have_none(name: str) -> None:
    with pytest.raises(UsageError, match="are not compared with a teacher's predictions"):
        task_of(name).beside(Teacher(lambda: (None, None), None))  # type: ignore[arg-type,return-value]


def test_networks_with_a_memory_have_none() -> None:
    task = open_task(parse_space(with_memory(LANGUAGE), "space"), "synthetic", None, 0)
    with pytest.raises(UsageError, match="remove memory_length"):
        task.beside(Teacher(lambda: (None, None), None))  # type: ignore[arg-type,return-value]

"""What is done while a network is timed, and which workloads are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from latency.workload import Workload
from nas.profiling.latency_meter import LatencyMeter
from nas.profiling.timed_work import example_inputs, timed_call
from nas.profiling.workloads import check_workload
from search_spaces.errors import UsageError
from search_spaces.loading import parse_space
from search_spaces.space import SearchSpace
from supernet.data.tokenizer import EOS
from supernet.sequence_models import SequenceModel
from tests.support.pipeline_cases import TINY, edited, logged, spec_of, tiny, work
from tests.support.task_cases import SPACES, networks_of, with_memory
from tests.support.trained_cases import LANGUAGE, TRANSLATION

TOKENS = edited(
    ("max_length = 4", "max_length = 24"),
    ('kind = "image"', 'kind = "tokens"\nvocab_size = 16'),
    ("image_size = 8\npatch_size = 4\nchannels = 1\n", ""),
    ('dataset = "digits"', 'dataset = "listops"'),
)
CLASS_TOKEN = TOKENS.replace("class_token = false", "class_token = true")


@torch.inference_mode()
def called(space: SearchSpace, workload: Workload) -> Any:
    """What a network does when it is timed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timed_call(space, networks_of(space, 1)[0], workload, "cpu")()


class Steps:
    """Notes the new tokens (rows, positions) of every step of a decoder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, eager_to_end: bool = False) -> None:
        self.seen: list[tuple[int, ...]] = []
        original, told = SequenceModel._read, SequenceModel.tell

        def read(model: SequenceModel, tokens: torch.Tensor, *rest: Any) -> Any:
            assert not model.training
            self.seen.append(tuple(tokens.shape))
            return original(model, tokens, *rest)

        def tell(model: SequenceModel, states: torch.Tensor) -> torch.Tensor:
            logits = told(model, states)
            logits[..., EOS] += 100.0 * eager_to_end
            return logits

        monkeypatch.setattr(SequenceModel, "_read", read)
        monkeypatch.setattr(SequenceModel, "tell", tell)


# -- what is done -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TINY, TOKENS], ids=["images", "tokens"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_classifier_classifies(text: str, batch: int) -> None:
    space = parse_space(text, "space")
    assert called(space, Workload(batch, 4)).shape == (batch, 10)


def test_a_pass_of_a_translator_reads_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    logits = called(SPACES["translation"], Workload(2, 7, 5))
    assert logits.shape == (2, 5, 160) and steps.seen == [(2, 5)]


@pytest.mark.parametrize("beam", [None, 1, 4])
@pytest.mark.parametrize(("batch", "target"), [(1, 1), (1, 9), (3, 6)])
def test_a_translator_writes_all_tokens(
    monkeypatch: pytest.MonkeyPatch, beam: int | None, batch: int, target: int
) -> None:
    """The first step has one row for each source; a beam of them from then on."""
    steps = Steps(monkeypatch)
    found = called(SPACES["translation"], Workload(batch, 7, target, beam=beam, mode="generate"))
    rows = batch * (beam or 1)
    assert [count for count, _ in steps.seen[1:]] == [rows] * (len(steps.seen) - 1)
    assert all(new == 1 for _, new in steps.seen)
    assert len(found) == batch
    lengths = {len(text.tokens) for texts in found for text in texts}
    assert lengths <= {target, target - 1} and target - 1 <= len(steps.seen) <= target + 1


@pytest.mark.parametrize("beam", [None, 3])
def test_a_translator_that_wants_to_end_writes_on(
    monkeypatch: pytest.MonkeyPatch, beam: int | None
) -> None:
    """Whatever a network's weights are, all are timed at the same work."""
    steps = Steps(monkeypatch, eager_to_end=True)
    called(SPACES["translation"], Workload(1, 7, 6, beam=beam, mode="generate"))
    assert 5 <= len(steps.seen) <= 7


def test_a_pass_of_a_language_model_reads_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    logits, _ = called(SPACES["language_modelling"], Workload(2, 7))
    assert logits.shape == (2, 7, 100) and steps.seen == [(2, 7)]


@pytest.mark.parametrize("target", [1, 5])
def test_a_language_model_goes_on_behind_its_prompt(
    monkeypatch: pytest.MonkeyPatch, target: int
) -> None:
    steps = Steps(monkeypatch)
    token = called(SPACES["language_modelling"], Workload(2, 7, target, mode="generate"))
    assert token.shape == (2, 1)
    assert steps.seen == [(2, 7), *[(2, 1)] * (target - 1)]


@pytest.mark.parametrize("mode", ["forward", "generate"])
def test_calling_again_does_the_same(mode: Any) -> None:
    """Nothing of a call is left over for the next one, memories included."""
    space = parse_space(with_memory(LANGUAGE), "space")
    network = next(n for n in networks_of(space, 9) if n.decoder and n.decoder.memory_length)
    call = timed_call(space, network, Workload(2, 6, 4, mode=mode), "cpu")
    with torch.inference_mode():
        first, again = call(), call()
    pick = (lambda x: x[0]) if mode == "forward" else (lambda x: x)
    assert torch.equal(pick(first), pick(again))


@pytest.mark.parametrize("kind", SPACES)
def test_inputs_are_always_the_same_and_without_marks(kind: str) -> None:
    space, workload = SPACES[kind], Workload(50, 16)
    torch.manual_seed(1)
    found = example_inputs(space, workload)
    torch.manual_seed(2)
    assert torch.equal(found, example_inputs(space, workload))
    if kind != "classification":
        assert found.shape == (50, 16)
        assert int(found.min()) == 4 and int(found.max()) == space.model.input.vocab_size - 1  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_tiny_vocabularies_have_inputs_too(size: int) -> None:
    space = parse_space(TOKENS.replace("vocab_size = 16", f"vocab_size = {size}"), "space")
    found = example_inputs(space, Workload(3, 9))
    assert int(found.min()) > 0 and int(found.max()) < size


# -- what is refused --------------------------------------------------------------------------

REFUSED = {
    "images of another size": (TINY, Workload(1, 5), "source is 5.*has 4 patches; write source=4"),
    "a classifier with a target": (TINY, Workload(1, 4, 4), "target is 4.*leave out target"),
    "texts with a target": (TOKENS, Workload(1, 4, 4), "target is 4.*leave out target"),
    "a classifier that writes": (
        TINY,
        Workload(1, 4, 4, mode="generate"),
        "its networks classify; leave out mode, beam and target",
    ),
    "a translation of no length": (TRANSLATION, Workload(1, 4), "as in target=30"),
    "a long source": (TRANSLATION, Workload(1, 65, 4), "source is 65 tokens.*is 64"),
    "a long target": (TRANSLATION, Workload(1, 4, 65), "target is 65 tokens.*is 64"),
    "a long text": (TOKENS, Workload(1, 25), "source is 25 tokens.*is 24"),
    "a long segment": (LANGUAGE, Workload(1, 65), "source is 65 tokens"),
    "a long text to write": (
        LANGUAGE,
        Workload(1, 40, 25, mode="generate"),
        "source and target together is 65 tokens.*is 64",
    ),
    "no room for the class token": (
        CLASS_TOKEN,
        Workload(1, 24),
        "source is 24 tokens.*is 24, less one",
    ),
}


@pytest.mark.parametrize(("text", "workload", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_networks_cannot_do_is_refused(text: str, workload: Workload, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_workload(parse_space(text, "space"), workload)


ALLOWED = {
    "images": (TINY, Workload(1, 4)),
    "the longest translation": (TRANSLATION, Workload(1, 64, 64, beam=2, mode="generate")),
    "the longest text": (TOKENS, Workload(1, 24)),
    "the longest text beside a class token": (CLASS_TOKEN, Workload(1, 23)),
    "the longest segment": (LANGUAGE, Workload(1, 64)),
    "the longest text to write": (LANGUAGE, Workload(1, 60, 4, mode="generate")),
}


@pytest.mark.parametrize(("text", "workload"), ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed_can_be_done(text: str, workload: Workload) -> None:
    space = parse_space(text, "space")
    check_workload(space, workload)
    called(space, workload)


WRITES = edited(("batch = 4\nsource = 4", "batch = 4\nsource = 4\ntarget = 4\nbeam = 2"))


def test_a_meter_refuses_as_well(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its networks classify"):
        LatencyMeter(spec_of(tmp_path / "run", WRITES, objectives=("quality", "latency_ms")))


@pytest.mark.parametrize("objective", ["latency_ms", "flops"])
def test_it_is_refused_before_any_work_where_it_matters(tmp_path: Path, objective: str) -> None:
    run = tiny(tmp_path / "run", WRITES, objectives=("quality", objective))
    if objective == "flops":
        work(run)
        return
    with pytest.raises(UsageError, match="its networks classify"):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}

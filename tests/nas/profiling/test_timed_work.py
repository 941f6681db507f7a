"""What is done while a network is timed, and which workloads are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from latency.timer import Call, inference, time_calls
from latency.workload import Workload
from nas.profiling import timed_work
from nas.profiling.latency_meter import LatencyMeter
from nas.profiling.timed_work import (
    example_inputs,
    network_cost,
    network_host_share,
    timed_call,
)
from nas.request.workloads import check_runtime, check_workload
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


# -- how it is run ----------------------------------------------------------------------------

ONE_BY_ONE = ("forward", "decode", "prefill")
LM = SPACES["language_modelling"]


def calls_of(space: SearchSpace, workload: Workload, device: str) -> tuple[Call, Call]:
    """A network run eagerly and as the workload says, with the same weights."""
    network, found = networks_of(space, 1)[0], list[Call]()
    for one in (replace(workload, runtime=None), workload):
        torch.manual_seed(0)
        found.append(timed_call(space, network, one, device))
    return found[0], found[1]


def tensor_of(result: Any) -> torch.Tensor:
    """What a network says, without the state that it goes on with."""
    tensor = result[0] if isinstance(result, tuple) else result
    assert isinstance(tensor, torch.Tensor)
    return tensor


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A card that captures nothing: the calls are as they would be captured."""
    seen: list[str] = []

    def replayed(call: Call, device: str, dtype: str) -> Call:
        seen.append(dtype)
        return call

    monkeypatch.setattr(timed_work, "replayed", replayed)
    monkeypatch.setattr(timed_work, "check_runtime", lambda *_: None)
    return seen


@pytest.mark.parametrize("mode", ["forward", "prefill", "decode", "generate"])
def test_a_graph_holds_what_is_called_eagerly(stand_in: list[str], mode: Any) -> None:
    length = 5 if mode == "generate" else None
    workload = Workload(2, 7, length, mode=mode, runtime="graph")
    with torch.inference_mode():
        eager, graph = (tensor_of(call()) for call in calls_of(LM, workload, "cpu"))
    assert torch.equal(eager, graph) and stand_in == ["float32"]


def test_a_graph_of_decoding_finds_the_state_in_the_precision_of_the_network(
    stand_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[torch.dtype] = []
    original = SequenceModel._read

    def read(model: SequenceModel, tokens: torch.Tensor, state: Any, *rest: Any) -> Any:
        states.extend(part.dtype for one in state.states or () for part in one[:1])
        return original(model, tokens, state, *rest)

    monkeypatch.setattr(SequenceModel, "_read", read)
    both = 'self_attention = ["softmax", "linear"]'
    space = parse_space(LANGUAGE.replace(both, 'self_attention = ["softmax"]'), "space")
    workload = Workload(2, 7, mode="decode", dtype="bfloat16", runtime="graph")
    for call, expected in zip(
        calls_of(space, workload, "cpu"), (torch.float32, torch.bfloat16), strict=True
    ):
        states.clear()
        with inference("cpu", "bfloat16"):
            call()
        assert set(states) == {expected}


@pytest.mark.parametrize("beam", [None, 4])
def test_a_graph_of_writing_leaves_the_texts_where_they_are(
    stand_in: list[str], beam: int | None
) -> None:
    workload = Workload(3, 7, 6, beam=beam, mode="generate", runtime="graph")
    eager, graph = calls_of(SPACES["translation"], workload, "cpu")
    with torch.inference_mode():
        texts: Any = eager()
        tokens, log_probabilities = graph()  # type: ignore[misc]
    same_texts(texts, tokens, log_probabilities)


def same_texts(texts: Any, tokens: torch.Tensor, log_probabilities: torch.Tensor) -> None:
    """What a search found is what was written."""
    found = [[list(one.tokens) for one in sentence] for sentence in texts]
    assert found == tokens.tolist()
    values = [[one.log_probability for one in sentence] for sentence in texts]
    torch.testing.assert_close(torch.tensor(values), log_probabilities.cpu().float())


def test_what_cannot_be_captured_names_the_network(
    stand_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Call:
        raise RuntimeError("operation not permitted when stream is capturing\nSome more")

    monkeypatch.setattr(timed_work, "replayed", refuse)
    space, network = SPACES["translation"], networks_of(SPACES["translation"], 1)[0]
    with pytest.raises(UsageError) as caught:
        timed_call(space, network, Workload(1, 7, 5, runtime="graph"), "cpu")
    assert str(caught.value) == (
        f"the network {network.id} cannot be captured in a CUDA graph (operation not permitted "
        "when stream is capturing): write runtime=eager in place of runtime=graph"
    )


def test_memory_that_does_not_suffice_is_no_fault_of_the_network(
    stand_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Call:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(timed_work, "replayed", refuse)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        timed_call(LM, networks_of(LM, 1)[0], Workload(1, 7, runtime="graph"), "cpu")


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (Workload(1, 7, runtime="graph"), "device is cpu; leave out runtime, or write runtime=co"),
        (Workload(1, 7, 5, mode="generate", runtime="graph"), "device is cpu; leave out runtime$"),
    ],
)
def test_a_graph_takes_a_card(workload: Workload, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        timed_call(LM, networks_of(LM, 1)[0], workload, "cpu")
    check_runtime(workload, "cuda")
    check_runtime(replace(workload, runtime=None), "cpu")


@pytest.mark.parametrize("mode", ONE_BY_ONE)
@pytest.mark.parametrize("kind", SPACES)
def test_networks_are_compiled_whole(monkeypatch: pytest.MonkeyPatch, kind: str, mode: Any) -> None:
    """By torch's tracer alone, which is what a network can be in the way of."""
    if mode != "forward" and kind != "language_modelling":
        pytest.skip("such networks do not go on with a text")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    target, source = (5 if kind == "translation" else None), (4 if kind == "classification" else 7)
    workload = Workload(2, source, target, mode=mode, runtime="compile")
    eager, ready = calls_of(SPACES[kind], workload, "cpu")
    with torch.inference_mode():
        torch.testing.assert_close(tensor_of(ready()), tensor_of(eager()))


@pytest.mark.slow
def test_a_compiled_network_computes_the_same() -> None:
    eager, ready = calls_of(SPACES["classification"], Workload(2, 4, runtime="compile"), "cpu")
    with torch.inference_mode():
        torch.testing.assert_close(tensor_of(ready()), tensor_of(eager()))


def test_memory_is_that_of_the_eager_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_work, "compiled", lambda *_: pytest.fail("compiled"))
    network, workload = networks_of(LM, 1)[0], Workload(1, 7)
    given = "peak_memory_mb", LM, network
    assert network_cost(*given, replace(workload, runtime="compile"), "cpu") == network_cost(
        *given, workload, "cpu"
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_is_measured_as_the_network_is_timed(
    monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    """In its precision, from a state that was made beforehand in fp32."""
    seen: list[tuple[bool, set[torch.dtype]]] = []
    original = SequenceModel._read

    def read(model: SequenceModel, tokens: torch.Tensor, state: Any, *rest: Any) -> Any:
        states = {part.dtype for one in state.states or () for part in one[:1]}
        seen.append((torch.is_autocast_enabled("cpu"), states))
        return original(model, tokens, state, *rest)

    monkeypatch.setattr(SequenceModel, "_read", read)
    both = 'self_attention = ["softmax", "linear"]'
    space = parse_space(LANGUAGE.replace(both, 'self_attention = ["softmax"]'), "space")
    workload = Workload(2, 7, mode="decode", dtype=dtype)
    network_cost("peak_memory_mb", space, networks_of(space, 1)[0], workload, "cpu")
    (made_low, _), (called_low, states) = seen
    assert not made_low and called_low == (dtype == "bfloat16") and states == {torch.float32}


ON_A_CARD = {
    "an encoder": ("classification", Workload(4, 4, runtime="graph")),
    "a text that is read": ("language_modelling", Workload(2, 16, mode="prefill", runtime="graph")),
    "a token": ("language_modelling", Workload(2, 16, mode="decode", runtime="graph")),
    "a text": ("language_modelling", Workload(2, 7, 9, mode="generate", runtime="graph")),
    "a pass of a translator": ("translation", Workload(2, 7, 5, runtime="graph")),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("what", ON_A_CARD)
def test_a_replay_computes_the_same(what: str, dtype: Any) -> None:
    kind, workload = ON_A_CARD[what]
    eager, graph = calls_of(SPACES[kind], replace(workload, dtype=dtype), "cuda")
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.05, "atol": 0.05}
    with inference("cuda", dtype):
        for _ in range(3):
            if what == "a text" and dtype == "bfloat16":
                graph()  # roundings choose other tokens
                continue
            torch.testing.assert_close(tensor_of(graph()), tensor_of(eager()), **near)


@pytest.mark.gpu
@pytest.mark.parametrize("beam", [None, 4])
def test_a_replay_writes_the_same_texts(beam: int | None) -> None:
    workload = Workload(3, 7, 9, beam=beam, mode="generate", runtime="graph")
    eager, graph = calls_of(SPACES["translation"], workload, "cuda")
    with torch.inference_mode():
        texts: Any = eager()
        for _ in range(2):
            tokens, log_probabilities = graph()  # type: ignore[misc]
            same_texts(texts, tokens, log_probabilities)


@pytest.mark.gpu
def test_a_graph_takes_most_of_the_launching_from_the_host() -> None:
    space, network = SPACES["translation"], networks_of(SPACES["translation"], 1)[0]
    workload = Workload(1, 7, 20, beam=4, mode="generate")
    graph = replace(workload, runtime="graph")
    eager_ms, graph_ms = (
        one.median_ms
        for one in time_calls(
            [timed_call(space, network, one, "cuda") for one in (workload, graph)], "cuda"
        )
    )
    assert graph_ms < eager_ms
    share = network_host_share(space, network, graph, "cuda")
    assert share.host_ms < network_host_share(space, network, workload, "cuda").host_ms


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
def test_it_is_refused_before_any_work_timed_or_not(tmp_path: Path, objective: str) -> None:
    run = tiny(tmp_path / "run", WRITES, objectives=("quality", objective))
    with pytest.raises(UsageError, match="its networks classify"):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}


def test_a_graph_is_refused_before_any_work_on_a_processor(tmp_path: Path) -> None:
    text = edited(("batch = 4\nsource = 4", 'batch = 4\nsource = 4\nruntime = "graph"'))
    run = tiny(tmp_path / "run", text, objectives=("quality", "latency_ms"))
    with pytest.raises(UsageError, match="runtime=graph replays a CUDA graph"):
        work(run)
    assert {event["stage"] for event in logged(run)} == {"declare"}

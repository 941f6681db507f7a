"""What every objective promises, and those of decoding: workloads, rates, limits, a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latency.acceptance import SessionTimes
from latency.machine import MachineState
from latency.timing import Timing
from latency.workload import Workload
from nas.objectives import (
    COSTS,
    COUNTED,
    OBJECTIVES,
    TIMED,
    base_workload,
    counted,
    rates,
    timed_workload,
)
from nas.objectives.latency_limits import keeps
from nas.profiling import latency_meter
from nas.profiling.timed_work import timed_call
from nas.request.presets import budget_for
from nas.request.spec import SearchTerms, build_spec
from nas.request.workloads import check_workload, own_workload
from nas.results.partial_front import partial_front
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from nas.search.front import FrontEntry, pick, read_front
from nas.stages.feasibility import check_costs, check_limits
from nas.stages.pipeline import run_search
from search_spaces.architecture import Architecture
from search_spaces.errors import UnreachableLimitError, UsageError
from search_spaces.loading import dump_space, load_space, parse_space
from search_spaces.variation import sample_distinct, smallest

SPACE = parse_space(
    """\
[space]
name = "tiny-lm"
task = "language_modelling"

[model]
max_length = 48
head_dim = 4
positions = "none"
linear_kernel = "norm"

[model.input]
kind = "tokens"
vocab_size = 100

[decoder]
embed_dim = [8, 16]
num_layers = [1, 2]
self_attention = ["softmax", "window:8", "linear"]
self_num_heads = [1, 2]
ffn_dim = [8, 16]

[data]
dataset = "synthetic"

[workload]
source = 24
batch = 4
context = 32
""",
    "tiny-lm.toml",
)
LIMITS = {"kv_cache_mb": 1.0, "decode_ms": 3.5, "prefill_ms": 30.0, "tokens_per_s": 1200.0}


@pytest.mark.parametrize("name", OBJECTIVES)
class TestEveryObjective:
    """One contract for all."""

    def test_it_is_told_and_found(self, name: str) -> None:
        one = OBJECTIVES[name]
        assert one.name == name and one.label and one.head and one.unit
        assert one.to_json()["goal"] == ("maximise" if one.maximise else "minimise")
        assert sum(map(bool, (one.count, one.timed, one.measure, one.rate_of))) == (name in COSTS)
        assert bool(one.stage) == (one.timed or one.measure is not None)
        assert one.predicted == bool(one.std_name)

    def test_minimising_undoes_itself_and_keeps_the_order(self, name: str) -> None:
        one = OBJECTIVES[name]
        values = np.array([0.5, 1.0, 40.0])
        less = one.minimised(values)
        assert one.minimised(less) == pytest.approx(values)
        assert (np.diff(less) > 0).all() != one.maximise
        assert one.largest(2.0, 0.0, 3.0) == pytest.approx(one.minimised(2.0))
        assert one.largest(2.0, 0.1, 3.0) > one.minimised(2.0)

    def test_a_limit_is_judged_by_the_worst_to_expect(self, name: str) -> None:
        one = OBJECTIVES[name]
        good, bad = (2.1, 1.9) if one.maximise else (1.9, 2.1)
        assert keeps({name: good}, {}, {name: 2.0}) and not keeps({name: bad}, {}, {name: 2.0})
        # A doubtful one has to keep it with a margin of three.
        assert not keeps({name: good}, {}, {name: 2.0}, [name])
        far, near = (6.1, 5.9) if one.maximise else (0.66, 0.67)
        assert keeps({name: far}, {}, {name: 2.0}, [name])
        assert not keeps({name: near}, {}, {name: 2.0}, [name])
        if one.predicted:
            assert not keeps({}, {name: good, one.std_name: 0.5}, {name: 2.0})
        if one.upper_name:
            assert not keeps({name: good, one.upper_name: bad}, {}, {name: 2.0})

    def test_it_can_be_asked_for(self, name: str) -> None:
        asked = ("quality", "flops") if name == "quality" else ("quality", name)
        terms = SearchTerms(objectives=asked)
        assert terms.asks_for(name) and terms.needs(name)
        assert set(terms.timed) == {n for n in TIMED if n in (name, OBJECTIVES[name].rate_of)}


def test_rows_are_counted_one_by_one() -> None:
    rows = sample_distinct(SPACE, np.random.default_rng(0), 20)
    together = counted(SPACE, rows, COUNTED)
    for number in range(len(rows)):
        alone = counted(SPACE, rows[number : number + 1], COUNTED)
        assert all(alone[name][0] == together[name][number] for name in COUNTED)


# -- workloads -----------------------------------------------------------------------------------


def test_a_timing_depends_on_its_part_of_the_workload() -> None:
    given = Workload.parse("context=32,batch=4,allocator=paged", {"source": 24})
    assert given.to_json()["context"] == given.positions_read == 32
    assert given.timed_as(None) == Workload(4, 24)
    assert given.timed_as("decode") == Workload(4, 32, mode="decode")
    assert given.timed_as("prefill").timed_as(None) == Workload(4, 32, mode="prefill")
    assert Workload(1, 24).timed_as("decode").source_length == 24
    assert Workload.parse(given.option) == given


def test_workloads_of_before_are_written_as_before() -> None:
    text = {"batch": 1, "source": 30, "target": 30, "beam": 5}
    told = Workload.from_mapping(text).to_json()
    assert told == {**text, "dtype": "float32", "mode": "generate"}


@pytest.mark.parametrize(
    ("text", "words"),
    [("context=0", "context must be"), ("allocator=heap", "live, paged"), ("mode=reed", "prefill")],
)
def test_wrong_workloads_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Workload.parse(f"source=3,{text}")


def test_a_context_has_to_fit() -> None:
    check_workload(SPACE, Workload(1, 47, mode="decode"))
    with pytest.raises(UsageError, match="with the token behind it is 49 tokens"):
        check_workload(SPACE, Workload(1, 48, mode="decode"))
    check_workload(SPACE, Workload(1, 48, mode="prefill"))
    with pytest.raises(UsageError, match="do not go on with a text"):
        check_workload(load_space("multi30k"), Workload(1, 8, 8, mode="decode"))
    for name in ("decode_ms", "prefill_ms", "tokens_per_s"):
        assert name in str(OBJECTIVES[name].problem(load_space("multi30k")))
        assert OBJECTIVES[name].problem(SPACE) is None


def test_what_is_timed_writes_one_token_or_reads_the_context() -> None:
    (network,) = SPACE.decode(smallest(SPACE))
    calls = {mode: Workload(3, 20, mode=mode) for mode in ("decode", "prefill")}  # type: ignore[arg-type]
    for mode, positions in (("decode", 21), ("prefill", 20)):
        with torch.inference_mode():
            call: Any = timed_call(SPACE, network, calls[mode], "cpu")
            for _ in range(2):  # a call leaves nothing behind
                logits_B1V, state = call()
                assert logits_B1V.shape == (3, 1, 100) and state.position == positions


# -- rates ---------------------------------------------------------------------------------------


def test_a_rate_follows_from_its_time() -> None:
    values = {"decode_ms": 2.0, "decode_std_ms": 0.1, "decode_upper_ms": 2.5}
    found = rates(values, COSTS, SPACE)
    assert found == pytest.approx(
        {"tokens_per_s": 2000.0, "tokens_per_s_std": 100.0, "tokens_per_s_lower": 1600.0}
    )
    assert rates({"latency_ms": 2.0}, COSTS, SPACE) == rates(values, ["decode_ms"], SPACE) == {}
    (network,) = SPACE.decode(smallest(SPACE))
    entry = FrontEntry("id", network, {"decode_ms": 2.0}, {}, {"decode_ms": "busy"})
    rated = entry.with_rates(["tokens_per_s"], SPACE)
    assert rated.doubtful["tokens_per_s"] == "busy" and rated.minimised("tokens_per_s") == 0.5


# -- limits --------------------------------------------------------------------------------------


def test_limits_that_no_cache_keeps_are_refused() -> None:
    check_costs(SPACE, {"kv_cache_mb": 0.001})
    with pytest.raises(UnreachableLimitError, match="the smallest it can reach is 0.0"):
        check_costs(SPACE, {"kv_cache_mb": 1e-6})


class Machine:
    """Takes milliseconds that follow from depth, width and what is timed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.modes: list[str] = []
        monkeypatch.setattr(latency_meter, "time_session", self)

    def __call__(
        self,
        space: Any,
        reference: Architecture,
        networks: Sequence[Architecture],
        workload: Workload,
        *_: Any,
    ) -> SessionTimes:
        self.modes.append(workload.mode)
        times = tuple(Timing((self.ms(one, workload),) * 3) for one in networks)
        beside = Timing((self.ms(reference, workload),) * 3)
        return SessionTimes(beside, 0.0, times, MachineState(1.0), 0.0)

    @staticmethod
    def ms(architecture: Architecture, workload: Workload) -> float:
        """Prefilling takes as much for each position as a token does."""
        decoder = architecture.decoder
        assert decoder is not None
        token = 1.0 + len(decoder.layers) * decoder.embed_dim / 16
        return token * (1 if workload.mode == "decode" else workload.source_length / 4)


def spec_of(limits: dict[str, float]) -> Any:
    """A request for all four."""
    lengths = {f"{part}.segment_length": "32" for part in ("supernet", "retrain")}
    changes = lengths | {"supernet.epochs": "1"}
    return build_spec(
        preset="smoke",
        objectives=("quality", *LIMITS),
        limits=limits,
        space_toml=dump_space(SPACE),
        dataset="synthetic",
        budget=budget_for(SPACE, "smoke", changes),
        pick="tokens_per_s>=1300",
    )


def test_a_limit_on_a_rate_is_checked_by_the_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas.executors.local import LocalExecutor

    machine = Machine(monkeypatch)
    check_limits(spec_of({"tokens_per_s": 2600.0}), LocalExecutor())
    with pytest.raises(UnreachableLimitError, match="largest it can reach is 2660; lower"):
        check_limits(spec_of({"tokens_per_s": 2700.0}), LocalExecutor())
    assert set(machine.modes) == {"decode"}


@pytest.mark.slow
def test_a_search_with_all_of_them_and_a_limit_on_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    folder = RunFolder.create(tmp_path / "run", spec_of(LIMITS))
    for _ in run_search(folder):
        pass
    assert set(machine.modes) == {"decode", "prefill"}
    front = read_front(folder)
    assert [one.to_json()["goal"] for one in front.objectives].count("maximise") == 1
    batch = SPACE.workload["batch"]
    for entry in front.entries:
        values = entry.measured
        assert values["decode_ms"] == pytest.approx(
            machine.ms(entry.architecture, Workload(1, 1, mode="decode"))
        )
        assert values["tokens_per_s"] == pytest.approx(1000 * batch / values["decode_ms"])
        assert values["tokens_per_s_lower"] >= LIMITS["tokens_per_s"]
        assert all(values[name] <= LIMITS[name] for name in LIMITS if name != "tokens_per_s")
        assert values["decode_upper_ms"] <= LIMITS["decode_ms"]
        assert {"tokens_per_s", "tokens_per_s_std", "decode_ms"} <= entry.predicted.keys()
    picked = pick(front, "tokens_per_s>=1300")
    assert picked.measured["tokens_per_s"] >= 1300
    contents = read_contents(folder)
    assert set(contents.predictors) == {"decode_ms", "prefill_ms"} == set(contents.profiles)
    found = partial_front(contents)
    assert all("tokens_per_s" in one.values for one in (*found.measured, *found.predicted))
    before = (folder.path / "pareto.json").read_bytes()
    for name in ("pareto.json", "stages/front.json"):
        (folder.path / name).unlink()
    for _ in run_search(RunFolder.open(folder.path)):
        pass
    assert (folder.path / "pareto.json").read_bytes() == before


def test_a_source_of_the_longest_text_leaves_room_for_a_token() -> None:
    space = load_space("recall")
    longest = space.model.max_length
    full = replace(space, workload={**space.workload, "source": longest})
    assert base_workload(full).positions_read == longest - 1
    told = replace(full, workload={**full.workload, "context": 5})
    assert base_workload(told).positions_read == 5
    shorter = replace(full, workload={**full.workload, "source": longest - 9})
    assert base_workload(shorter).positions_read == longest - 9


def test_behind_a_context_of_the_longest_text_its_last_token_is_written() -> None:
    space = load_space("recall")
    longest = space.model.max_length
    for context, read in ((longest, longest - 1), (longest - 1, longest - 1), (7, 7)):
        told = replace(space, workload={**space.workload, "context": context})
        decode = timed_workload(told, "decode")
        check_workload(told, decode)
        assert decode.source_length == read
        assert timed_workload(told, "prefill").source_length == context
        assert base_workload(told).positions_read == context  # of which the state is counted
        told = replace(told, workload={**told.workload, "mode": "decode"})
        assert own_workload(told).positions_read == read
    longer = replace(space, workload={**space.workload, "context": longest + 1})
    with pytest.raises(UsageError, match="is 129 tokens, but max_length"):
        check_workload(longer, timed_workload(longer, "decode"))

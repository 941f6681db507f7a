"""Workloads: reading them, refusing wrong ones, and telling them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency.workload import Workload
from search_spaces.errors import UsageError

FULL = Workload(1, 30, 30, 5, "float32", "generate")


def test_text_with_a_beam_means_generation() -> None:
    assert Workload.parse("batch=1, source=30,target=30,beam=5") == FULL


def test_text_overrides_the_defaults_and_keeps_the_rest() -> None:
    got = Workload.parse("batch=8,dtype=bfloat16", {"batch": 32, "source": 16})
    assert got == Workload(8, 16, dtype="bfloat16")


def test_empty_text_is_the_defaults() -> None:
    assert Workload.parse("", {"source": 16}) == Workload(1, 16)


def test_forward_mode_drops_the_default_beam() -> None:
    assert Workload.parse("mode=forward", FULL.to_json()) == Workload(1, 30, 30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch=1", "source length"),
        ("source=30,batch", "key=value"),
        ("source=30,batch=", "key=value"),
        ("source=30,source=40", "twice"),
        ("source=0", "from 1 to"),
        ("source=-3", "positive integer"),
        ("source=thirty", "thirty"),
        ("source=3.5", "positive integer"),
        ("source=" + "9" * 5000, "from 1 to"),
        ("source=30,bacth=2", "did you mean 'batch'"),
        ("source=30,dtype=float8", "float32, bfloat16"),
        ("source=30,mode=sideways", "forward, generate"),
        ("source=30,mode=generate", "add target"),
        ("source=30,target=30,beam=5,mode=forward", "mode=generate"),
        ("source=30,runtime=jit", "runtime must be one of eager, graph, compile"),
        ("source=30,target=30,beam=5,runtime=compile", "leave out runtime, or write runtime=graph"),
    ],
)
def test_wrong_text_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Workload.parse(text)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None])
def test_a_batch_that_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="batch must be"):
        Workload.from_mapping({"batch": value, "source": 3})


@pytest.mark.parametrize("data", [None, [], "source=3", 3])
def test_json_of_another_kind_is_refused(data: object) -> None:
    with pytest.raises(UsageError, match="JSON object"):
        Workload.from_json(data)


sizes = st.integers(1, 1000)


@given(sizes, sizes, st.none() | sizes, st.sampled_from(["float32", "bfloat16"]))
def test_json_gives_the_same_workload_back(
    batch: int, source: int, target: int | None, dtype: str
) -> None:
    workload = Workload(batch, source, target, dtype=dtype)  # type: ignore[arg-type]
    assert Workload.from_json(workload.to_json()) == workload


def test_every_field_changes_the_digest() -> None:
    others = [
        Workload(2, 30, 30, 5, mode="generate"),
        Workload(1, 31, 30, 5, mode="generate"),
        Workload(1, 30, 31, 5, mode="generate"),
        Workload(1, 30, 30, 4, mode="generate"),
        Workload(1, 30, 30, 5, "bfloat16", "generate"),
        Workload(1, 30, 30),
    ]
    assert len({FULL.digest, *(other.digest for other in others)}) == 1 + len(others)
    assert Workload.from_json(FULL.to_json()).digest == FULL.digest


def test_label_names_sizes_dtype_and_mode() -> None:
    assert FULL.label == "batch 1, source 30, target 30, beam 5, float32, generate"
    assert Workload(2, 16).label == "batch 2, source 16, float32, forward"
    assert Workload(2, 16, runtime="graph").label.endswith("float32, forward, graph")


def test_a_runtime_is_told_where_it_is_not_eager() -> None:
    eager, graph = Workload(2, 16, runtime="eager"), Workload(2, 16, runtime="graph")
    assert eager == Workload(2, 16) and eager.digest == Workload(2, 16).digest
    assert eager.option == "batch=2,source=16,dtype=float32,mode=forward"
    # As it was before there were runtimes, so that what is stored is found.
    assert eager.digest == "5a3e311c1fc228942eac2120ec8b4472901a5de72f766839e4b7f89866cd62e6"
    assert graph != eager and graph.option.endswith(",runtime=graph")
    assert Workload.from_json(graph.to_json()) == graph == Workload.parse(graph.option)
    assert Workload.parse("runtime=eager", graph.to_json()) == eager
    assert graph.timed_as("decode").runtime == "graph"

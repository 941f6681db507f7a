"""The request of a search: what is allowed, what is refused and in which words, and its digest."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from nas.console.commands.search import Here
from nas.objectives import check_bound_names, check_cost_names
from nas.request.presets import PRESETS, Budget, budget_for, build_budget, check_trainings
from nas.request.resolve import resolve
from nas.request.spec import LATER_SETTINGS, SearchRequest, SearchSpec, Start, build_spec
from search_spaces.errors import SpaceFileError, UnknownNameError, UsageError
from search_spaces.loading import dump_space, load_space, parse_space
from supernet.training_settings import TrainingSettings
from tests.support.pipeline_cases import ROOT, TINY, spec_of

DIGITS = load_space("digits")


def spec(**values: Any) -> SearchSpec:
    return build_spec(**({"space_toml": dump_space(DIGITS), "dataset": "digits"} | values))


@pytest.mark.parametrize(
    "objectives",
    [("quality", "flops"), ("quality", "params", "latency_ms"), ("flops", "quality")],
)
def test_objectives(objectives: tuple[str, ...]) -> None:
    made = spec(objectives=objectives)
    assert set(made.objectives) == set(objectives) and made.objectives[0] == "quality"
    assert made.needs_latency == ("latency_ms" in objectives)


@pytest.mark.parametrize(
    ("objectives", "words"),
    [
        ((), "objectives need quality and at least one of latency_ms, decode_ms,"),
        (("quality",), "objectives need quality and at least one"),
        (("flops", "params"), "objectives need quality and at least one"),
        (("quality", "flops", "flops"), "named twice"),
        (("quality", "speed"), "unknown objective 'speed'; known are quality, latency_ms"),
    ],
)
def test_wrong_objectives(objectives: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spec(objectives=objectives)


def test_limits() -> None:
    made = spec(objectives=("quality", "flops"), limits={"params": 2e5, "latency_ms": 5})
    assert list(made.limits) == ["latency_ms", "params"] and made.needs_latency
    assert (
        spec(limits={"params": 1, "flops": 2}).digest
        == spec(limits={"flops": 2, "params": 1}).digest
    )


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"quality": 1.0}, "no limit can be set on 'quality'; known are latency_ms, decode_ms,"),
        ({"memory": 1.0}, "no limit can be set on 'memory'"),
        ({"params": 0.0}, "the limit params=0 must be above 0"),
        ({"params": -3.0}, "must be above 0"),
        ({"params": float("nan")}, "params"),
        ({"params": float("inf")}, "params"),
    ],
)
def test_wrong_limits(limits: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spec(limits=limits)


@pytest.mark.parametrize(
    "values",
    [
        {"seed": -1},
        {"seed": 2**31},
        {"seed": "many"},
        {"seed": 1.5},
        {"colour": 1},
        {"dataset": None},
    ],
)
def test_wrong_fields_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))) as caught:
        spec(**values)
    assert "\n" not in str(caught.value)


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        spec().seed = 3


def test_a_broken_space_is_named() -> None:
    with pytest.raises(SpaceFileError, match=r"the run's space\.toml"):
        _ = spec(space_toml="[space]\nname = 3").space


# -- budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("supernet.epochs", "0"),
        ("supernet.epochs", "-1"),
        ("supernet.epochs", "1e99"),
        ("supernet.epochs", "nan"),
        ("supernet.epochs", "1.5"),
        ("supernet.epochs", "99999999999999999999"),
        ("supernet.epochs", "many"),
        ("supernet.batch_size", "0"),
        ("supernet.learning_rate", "0"),
        ("supernet.learning_rate", "nan"),
        ("supernet.learning_rate", "11"),
        ("supernet.clip_norm", "-1"),
        ("supernet.clip_norm", "inf"),
        ("supernet.stop_tau", "nan"),
        ("supernet.stop_tau", "inf"),
        ("supernet.dropout", "1"),
        ("supernet.dropout", "-0.1"),
        ("supernet.ema_decay", "1"),
        ("supernet.warmup_share", "1.1"),
        ("supernet.sampling", "random"),
        ("supernet.bfloat16", "maybe"),
        ("observations", "7"),
        ("observations", "1000001"),
        ("latency_samples", "7"),
        ("timing_rounds", "0"),
        ("evolution.population", "3"),
        ("evolution.population", "100001"),
        ("evolution.generations", "0"),
        ("evolution.mutation_rate", "2"),
        ("verified", "0"),
        ("min_pairwise_accuracy", "1.5"),
        ("threads", "0"),
        ("threads", "2000"),
    ],
)
def test_numbers_out_of_range_are_named(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        budget_for(DIGITS, "quick", {name: value})
    assert name in str(caught.value) and value in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("supernet.epochs", "1", 1),
        ("supernet.learning_rate", "10", 10.0),
        ("supernet.clip_norm", "0", 0.0),
        ("supernet.sampling", "uniform", "uniform"),
        ("supernet.bfloat16", "true", True),
        ("supernet.augmentation", "shift=1,flip", "shift=1,flip"),
        ("observations", "8", 8),
        ("evolution.population", "4", 4),
        ("threads", "1024", 1024),
    ],
)
def test_numbers_at_the_edge_are_kept(name: str, value: str, kept: object) -> None:
    found: Any = budget_for(DIGITS, "quick", {name: value})
    for part in name.split("."):
        found = getattr(found, part)
    assert found == kept and type(found) is type(kept)


@pytest.mark.parametrize("name", ["supernet.augmentation", "retrain.augmentation"])
def test_an_augmentation_is_read_before_the_run(name: str) -> None:
    check_trainings(budget_for(DIGITS, "quick", {name: "crop=4,flip"}))
    wrong = budget_for(DIGITS, "quick", {name: "blur=1"})  # runs that have it are read
    with pytest.raises(UsageError, match="'blur=1' is not understood") as caught:
        check_trainings(wrong)
    assert caught.value.field == f"settings/{name}"


@pytest.mark.parametrize(
    "name", ["epochs", "supernet.speed", "supernet", "supernet.epochs.more", ".", "", "evolution."]
)
def test_unknown_numbers_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        budget_for(DIGITS, "quick", {name: "3"})


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'quick'"):
        budget_for(DIGITS, "qick", {})
    with pytest.raises(UnknownNameError, match="there are smoke, quick, standard, paper"):
        budget_for(DIGITS, "huge", {})


@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_space_goes_before_the_preset_and_the_user_before_both(preset: str) -> None:
    plain = budget_for(parse_space(TINY, "space"), preset, {})
    assert plain.observations == PRESETS[preset].get("observations", Budget().observations)
    own = budget_for(DIGITS, preset, {})
    assert own.supernet.epochs == DIGITS.presets[preset]["supernet"]["epochs"]
    assert own.evolution == plain.evolution
    users = budget_for(DIGITS, preset, {"supernet.epochs": "17"})
    assert users.supernet.epochs == 17
    assert users.supernet.learning_rate == own.supernet.learning_rate


@pytest.mark.parametrize("preset", list(PRESETS))
def test_a_preset_reads_no_more_at_once_than_its_networks_can(preset: str) -> None:
    text = dump_space(load_space("recall")).partition("[presets")[0]
    for longest, length in ((64, 64), (128, 128), (512, 128)):
        space = parse_space(text.replace("max_length = 128", f"max_length = {longest}"), "space")
        found = budget_for(space, preset, {})
        assert found.supernet.segment_length == found.retrain.segment_length == length
        assert found.supernet.epochs == budget_for(None, preset, {}).supernet.epochs
        asked = budget_for(space, preset, {"supernet.segment_length": "300"})
        assert (asked.supernet.segment_length, asked.retrain.segment_length) == (300, length)
        own = replace(space, presets={preset: {"retrain": {"segment_length": 300}}})
        assert budget_for(own, preset, {}).retrain.segment_length == 300
    digits = replace(DIGITS, presets={})
    assert budget_for(digits, preset, {}).supernet.segment_length == 128  # read by no task of it


def test_presets_grow() -> None:
    sizes = [budget_for(parse_space(TINY, "space"), p, {}) for p in PRESETS]
    for name in ("observations", "latency_samples", "timing_rounds", "verified"):
        values = [getattr(size, name) for size in sizes]
        assert values == sorted(set(values))


def test_the_settings_of_a_training_are_all_in_the_budget() -> None:
    names = {field.name for field in fields(TrainingSettings)}
    assert set(build_budget({}).model_dump()["supernet"]) == names


# -- the digest ---------------------------------------------------------------------------------


def test_every_field_is_in_the_digest() -> None:
    changed = {
        "space_toml": dump_space(load_space("listops")),
        "dataset": "npz",
        "data": "x.npz",
        "device": "cuda",
        "objectives": ("quality", "flops"),
        "quality": "bleu",
        "limits": {"params": 1e5},
        "searcher": "ranknas",
        "preset": "smoke",
        "budget": budget_for(DIGITS, "quick", {"retrain.checkpoint_updates": "3"}),
        "seed": 1,
        "pick": "0123456789ab",
        "keep": {"encoder.attention": ("omni",)},
        "device_profile": "0" * 64,
        "start": Start(folder="/models/mine", digest="0" * 64),
        "evaluator": "package.module:Name",
        "baseline": "plain",
        "retrain": 3,
    }
    assert set(changed) == set(SearchSpec.model_fields)
    digests = {spec(**{name: value}).digest for name, value in changed.items()}
    assert len(digests | {spec().digest}) == len(changed) + 1


def test_protected_choices_are_brought_into_the_order_of_the_space() -> None:
    one = spec(keep={"encoder.ffn_dim": ("64", 8), "encoder.attention": ["omni"]})
    two = spec(keep={"encoder.attention": ["omni"], "encoder.ffn_dim": (8, 64, 8)})
    assert one == two and one.digest == two.digest
    assert one.keep == {"encoder.attention": ("omni",), "encoder.ffn_dim": (8, 64)}


def test_fields_that_are_not_used_are_not_in_the_digest() -> None:
    values = spec().model_dump(mode="json")
    assert values.pop("keep") == {} and values.pop("evaluator") is None
    assert values.pop("device_profile") is None and values.pop("baseline") is None
    assert values.pop("retrain") == 1
    assert values.pop("start") is None and values["budget"].pop("distil")
    assert values["budget"].pop("own_updates") == 0 and values["budget"].pop("own_seeds") == 1
    for training in ("supernet", "retrain"):
        for name in LATER_SETTINGS:
            assert not values["budget"][training].pop(name)
    text = json.dumps(values, sort_keys=True)
    assert spec().digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("keep", [{"attention": ("omni",)}, {"encoder.ffn_dim": (7,)}])
def test_protected_choices_that_the_space_has_not_are_refused(keep: Any) -> None:
    with pytest.raises(UnknownNameError, match="did you mean|it has 4, 8, 16, 32, 64"):
        spec(keep=keep)


def test_a_run_of_before_may_have_keys_of_data_that_nobody_reads() -> None:
    text = TINY.replace("[data]\n", "[data]\nfoo = 1\n")
    old = spec(space_toml=text, keep={"encoder.num_layers": [1]})
    assert old.space.data["foo"] == old.domain.data["foo"] == 1  # type: ignore[attr-defined]
    assert old.parsed(text, "pruned_space.toml").digest == old.space.digest
    with pytest.raises(SpaceFileError, match="data.foo: found 'foo'"):
        resolve(SearchRequest(space_toml=text), Here())


def test_json_and_back_keeps_the_digest() -> None:
    made = spec(limits={"params": 12345.678}, budget=budget_for(DIGITS, "paper", {}))
    again = build_spec(**json.loads(json.dumps(made.model_dump(mode="json"))))
    assert again == made and again.digest == made.digest


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"supernet.average_last": 10}, "supernet.average_last is 10, .* set retrain.average_last"),
        ({"retrain.stop_tau": 0.9}, "retrain.stop_tau is 0.9, .* has no ranking .* set it to 2"),
        ({"supernet.stop_tau": 1.0, "supernet.num_probes": 1}, "set supernet.num_probes to 2"),
    ],
)
def test_numbers_that_would_change_nothing_are_refused(
    numbers: dict[str, float], words: str
) -> None:
    request = SearchRequest(space="digits", preset="smoke", settings=numbers)
    with pytest.raises(UsageError, match=words) as caught:
        resolve(request, Here())
    assert caught.value.field == "settings"
    begun = spec(budget=budget_for(DIGITS, "smoke", request.overrides))
    assert build_spec(**begun.model_dump(mode="json")) == begun  # runs that have them go on


def test_such_numbers_are_kept_where_they_change_something() -> None:
    numbers = {"retrain.average_last": 10, "supernet.stop_tau": 0.9, "retrain.stop_tau": 1.1}
    request = SearchRequest(space="digits", preset="smoke", settings=numbers)
    assert resolve(request, Here()).spec.budget.retrain.average_last == 10


def test_the_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    made = spec_of(tmp_path / "run", TINY)
    (tmp_path / "spec.json").write_text(json.dumps(made.model_dump(mode="json")))
    code = (
        "import json, sys; from nas.request.spec import build_spec;"
        "print(build_spec(**json.load(open(sys.argv[1]))).digest, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "spec.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [made.digest, "False"]


def test_a_request_of_an_older_version_is_the_same_request() -> None:
    """Written by 0.2.0, with the digest that it had there: its runs go on."""
    text = (ROOT / "tests/fixtures/spec_0_2.json").read_text("utf-8")
    known = "c28dea1347463d2736f43fa6e316ee7682f705da0a1c8b0e1b2f7757a7f3963a"
    assert build_spec(**json.loads(text)).digest == known


def test_a_cost_that_is_called_as_a_bound_is_refused_of_new_searches_alone() -> None:
    names = ["latency_ms", "latency_upper_ms"]
    check_cost_names(names)  # with which specs of runs are read
    with pytest.raises(UsageError, match="whose upper bound"):
        check_bound_names(names)

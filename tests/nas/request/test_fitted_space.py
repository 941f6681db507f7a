"""Spaces made for data: what decides their sizes and lengths, and that their files can be used."""

from __future__ import annotations

from typing import Any

import pytest

from nas.request.fitted_space import (
    CHECKS,
    MOST_PASSES,
    MOST_TIMING_S,
    OBSERVE,
    PROBES,
    RETRAIN,
    SIZE_NAMES,
    SUPERNET,
    TRAININGS,
    Amounts,
    Pace,
    Size,
    amounts_for,
    augmentation,
    fit_space,
    largest_size,
    network_side,
    patch_size,
    space_text,
)
from nas.request.presets import budget_for, check_presets
from search_spaces.errors import UsageError
from search_spaces.settings import ImageInput
from search_spaces.space import SearchSpace
from search_spaces.space_form import space_from_source
from search_spaces.toml.source import TomlSource
from supernet.data.manifest import Manifest, SplitRecord, TokenizerRecord

CONTENTS = ("images", "texts", "pairs", "stream")
TASKS = {
    "images": "classification",
    "texts": "classification",
    "pairs": "translation",
    "stream": "language_modelling",
    "embeddings": "embedding",
}
QUICK = Pace(0.01, 0.02, 0.001, 100, 1)


def manifest(content: str, examples: int = 50_000, **changes: Any) -> Manifest:
    counts = {
        "tokens": 20 * examples,
        "source_tokens": 9 * examples,
        "target_tokens": 11 * examples,
    }
    longest = {} if content == "images" else {"source": 40}
    split = SplitRecord(examples=examples, counts=counts, longest=longest)
    classes = TASKS[content] == "classification"
    values = {
        "task": TASKS[content],
        "content": content,
        "settings": {},
        "request": "0",
        "inputs": [],
        "tokenizer": None if content == "images" else TokenizerRecord(kind="bpe", vocab_size=500),
        "image_shape": (32, 32, 3) if content == "images" else None,
        "label_names": ["a", "b", "c"] if classes else [],
        "splits": {
            "train": split,
            "valid": split.model_copy(update={"examples": 1_000}),
            "test": split,
        },
        "files": {},
    }
    return Manifest.model_validate(values | changes)


def always(pace: Pace) -> Any:
    return lambda space: pace


@pytest.mark.parametrize("content", CONTENTS)
def test_a_made_space_is_a_space_file_with_a_reason_on_each_line(content: str) -> None:
    made = fit_space(manifest(content), "my data", 1.0, always(QUICK))
    source = TomlSource.parse(made.text, "made.toml")
    space = space_from_source(source)
    check_presets(source, space)
    assert space.digest == made.space.digest and space.task == TASKS[content]
    assert space.name == "my-data"
    settings = [line for line in made.text.splitlines() if " = " in line and line[0] != "#"]
    assert settings and all(" # " in line for line in settings)
    for preset in ("smoke", "quick", "standard"):
        assert budget_for(space, preset, {}).threads == 1


def test_the_size_is_what_the_data_can_teach() -> None:
    few, many = manifest("images", 3_000), manifest("images", 200_000)
    assert (largest_size(few), largest_size(many)) == ("tiny", "medium")
    assert fit_space(few, "x", 1.0, always(QUICK)).size == "tiny"
    assert fit_space(many, "x", 1.0, always(QUICK)).size == "medium"


def test_the_size_is_what_the_time_allows() -> None:
    tried: list[str] = []

    def measure(space: SearchSpace) -> Pace:
        tried.append(space.description)
        return Pace(10.0 ** (len(tried) - 2), 0.1, 0.001, 100, 1)

    made = fit_space(manifest("images", 200_000), "x", 1.0, measure)
    # 0.1 s an update leaves time for 14,000, 1 s for 1,400, and 10 s would for 140.
    assert len(tried) == 3 and made.size == "small"


def test_a_size_that_is_asked_for_is_taken() -> None:
    made = fit_space(manifest("images", 10), "x", 1.0, always(QUICK), "large")
    assert made.size == "large" and 768 in made.space.slot("encoder.embed_dim").choices


def test_time_is_divided() -> None:
    pace = Pace(0.5, 1.0, 0.01, 1_000, 1)
    amounts = amounts_for(manifest("pairs"), pace, 2.0)
    left = 7200 - MOST_TIMING_S
    compared = amounts.valid_examples or 1_000
    check_s = CHECKS * compared * 0.01
    supernet = amounts.updates * 0.5 + PROBES * check_s
    trained = amounts.own_updates * (1.0 + TRAININGS * 0.5) + (1 + TRAININGS) * check_s
    assert 0.9 * SUPERNET * left <= supernet <= SUPERNET * left
    assert 0.9 * RETRAIN * left <= trained <= RETRAIN * left
    assert amounts.observations * compared * 0.01 <= OBSERVE * left


def test_half_of_a_short_time_is_for_updates() -> None:
    amounts = amounts_for(manifest("pairs"), Pace(0.01, 0.02, 0.01, 1_000, 1), 0.1)
    left = 360 - MOST_TIMING_S
    assert 0.8 * SUPERNET * left / 2 <= amounts.updates * 0.01 <= SUPERNET * left / 2


def test_small_data_are_not_read_more_often_than_they_teach() -> None:
    amounts = amounts_for(manifest("stream"), Pace(1e-4, 1e-4, 1e-6, 10, 1), 100.0)
    assert amounts.updates == amounts.own_updates == MOST_PASSES["stream"] * 10


@pytest.mark.parametrize(("updates", "passes"), [(5_000, 10), (300, 1_000)])
def test_trainings_have_the_updates_that_fit(updates: int, passes: int) -> None:
    amounts = Amounts(updates, updates, passes, 40, 0, 1)
    made = manifest("images")
    text = space_text(made, "x", "tiny", 1.0, amounts)
    space = space_from_source(TomlSource.parse(text, "x"))
    training = budget_for(space, "quick", {}).supernet
    found = training.epochs * (training.epoch_updates or passes)
    most = min(updates, MOST_PASSES["images"] * passes)
    assert most * 0.95 <= found <= most * 1.05 + 20


@pytest.mark.parametrize(
    ("side", "patch"), [(8, 1), (28, 4), (32, 4), (64, 8), (96, 12), (224, 16), (7, 1)]
)
def test_pictures_are_cut_into_about_sixty_tokens(side: int, patch: int) -> None:
    assert patch_size(side) == patch


@pytest.mark.parametrize(
    ("side", "read"),
    [(31, 32), (62, 63), (74, 75), (97, 98), (101, 102), (202, 203)]
    + [(side, side) for side in (1, 7, 8, 13, 28, 32, 48, 60, 64, 96, 100, 128, 224, 256, 300)],
)
def test_pictures_that_no_patch_cuts_well_are_enlarged(side: int, read: int) -> None:
    assert network_side(side) == read
    made = fit_space(manifest("images", image_shape=(side, side, 3)), "x", 1.0, always(QUICK))
    shape = made.space.model.input
    assert isinstance(shape, ImageInput) and shape.image_size == read
    assert made.space.model.max_length == shape.num_tokens <= 4 * (64 if read <= 96 else 196)


@pytest.mark.parametrize(("longest", "most"), [(40, 2048), (3000, 3000)])
def test_an_update_holds_the_longest_pair(longest: int, most: int) -> None:
    made = manifest("pairs")
    split = made.splits["test"].model_copy(update={"longest": {"source": 9, "target": longest}})
    longer = made.model_copy(update={"splits": {**made.splits, "train": split}})
    space = fit_space(longer, "x", 1.0, always(QUICK)).space
    budget = budget_for(space, "quick", {})
    assert budget.supernet.max_tokens == budget.retrain.max_tokens == most


@pytest.mark.parametrize(
    ("longest", "cut_at", "positions"),
    [(8, 512, 64), (8, 30, 30), (8, None, 64), (64, 512, 64), (300, 512, 300), (512, 512, 512)],
)
def test_a_space_has_room_for_longer_texts_than_its_data(
    longest: int, cut_at: int | None, positions: int
) -> None:
    split = manifest("texts").splits["train"].model_copy(update={"longest": {"source": longest}})
    splits = dict.fromkeys(("train", "valid", "test"), split)
    made = manifest("texts", splits=splits, settings={"max_length": cut_at})
    fitted = fit_space(made, "x", 1.0, always(QUICK))
    assert fitted.space.model.max_length == positions
    assert ("window:32" in fitted.text) == (longest > 256)


def test_grey_pictures_are_not_flipped() -> None:
    assert "flip" in augmentation(manifest("images"))
    assert "flip" not in augmentation(manifest("images", image_shape=(28, 28, 1)))
    assert augmentation(manifest("images", image_shape=(8, 8, 1))) == "shift=1"


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), 1e9])
def test_hours_that_are_no_time_are_refused(hours: float) -> None:
    with pytest.raises(UsageError, match="hours"):
        fit_space(manifest("images"), "x", hours, always(QUICK))


def test_pictures_that_are_not_square_are_refused() -> None:
    with pytest.raises(UsageError, match="--image-size"):
        fit_space(manifest("images", image_shape=(20, 30, 3)), "x", 1.0, always(QUICK))


def test_embeddings_need_a_checkpoint() -> None:
    with pytest.raises(UsageError, match="--from"):
        fit_space(manifest("embeddings"), "x", 1.0, always(QUICK))


@pytest.mark.parametrize("name", ['a"b', "täglich", "-", "a" * 200])
def test_any_folder_has_a_name_for_a_space(name: str) -> None:
    assert fit_space(manifest("texts"), name, 1.0, always(QUICK)).space.name


@pytest.mark.parametrize("size", SIZE_NAMES)
@pytest.mark.parametrize("content", CONTENTS)
def test_every_size_is_a_space(content: str, size: Size) -> None:
    assert fit_space(manifest(content), "x", 1.0, always(QUICK), size).space.size > 1_000

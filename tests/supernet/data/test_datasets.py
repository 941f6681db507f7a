"""Data sets: splits that do not overlap, normalised by the training part, refusals in words."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.errors import DataError, UnknownNameError, UsageError
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from supernet.data import sources
from supernet.data.examples import (
    Split,
    digest_of,
    load_search_data,
    load_test_split,
    unique_names,
)
from supernet.data.images import Normaliser
from supernet.data.sources import SOURCES, Request, Scale, holdout

DIGITS = ModelSettings(ImageInput(8, 2, 1), max_length=16, num_classes=10, head_dim=8)
CIFAR = ModelSettings(ImageInput(64, 16, 3), max_length=16, num_classes=10, head_dim=8)
LISTOPS = ModelSettings(TokenInput(16), max_length=64, num_classes=10, head_dim=8)

Arrays = dict[str, Any]


@pytest.fixture
def few_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in {"TRAIN": 100, "VALID": 30, "TEST": 20}.items():
        monkeypatch.setattr(sources, f"LISTOPS_{name}", count)


def arrays(train: int = 200, test: int = 30, side: int = 6) -> Arrays:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (train + test, side, side, 3), dtype=np.uint8)
    labels = np.arange(train + test) % 10
    return {
        "x_train": pixels[:train],
        "y_train": labels[:train],
        "x_test": pixels[train:],
        "y_test": labels[train:],
    }


def write(folder: Path, content: Arrays) -> str:
    np.savez_compressed(folder / "images.npz", **content)
    return str(folder / "images.npz")


def rows(inputs: Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in inputs}


def test_digits_are_split_as_declared() -> None:
    data, test = (
        load_search_data("digits", None, DIGITS, 0),
        load_test_split("digits", None, DIGITS, 0),
    )
    assert (len(data.train), len(data.valid), len(test)) == (1150, 287, 360)
    assert data.train.inputs.shape == (1150, 1, 8, 8) and data.train.inputs.dtype == torch.float32
    assert data.label_names == tuple("0123456789") and data.train.labels.dtype == torch.int64
    splits = [rows(split.inputs) for split in (data.train, data.valid, test)]
    assert len(set.union(*splits)) == 1797 == sum(map(len, splits))
    shares = [torch.bincount(s.labels).double() / len(s) for s in (data.train, data.valid, test)]
    assert all((share - shares[0]).abs().max() < 0.005 for share in shares)


def test_digits_are_normalised_by_the_training_split() -> None:
    data = load_search_data("digits", None, DIGITS, 0)
    assert data.train.inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert data.train.inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert data.valid.inputs.std(correction=0).item() != pytest.approx(1, abs=1e-4)
    test = load_test_split("digits", None, DIGITS, 0)
    assert set(test.inputs.unique().tolist()) == set(data.train.inputs.unique().tolist())
    assert data.background == (data.train.inputs.min().item(),)


def test_digits_do_not_depend_on_the_seed_and_lists_do(few_lists: None) -> None:
    def digest(name: str, model: ModelSettings, seed: int) -> str:
        return load_search_data(name, None, model, seed).digest

    assert digest("digits", DIGITS, 0) == digest("digits", DIGITS, 1)
    assert digest("listops", LISTOPS, 0) == digest("listops", LISTOPS, 0)
    assert digest("listops", LISTOPS, 0) != digest("listops", LISTOPS, 1)


def test_digest_of_digits_has_not_changed() -> None:
    """Runs are resumed and compared by this number; another split or scaling would change it."""
    assert load_search_data("digits", None, DIGITS, 0).digest[:16] == "ea6b58a2747000f0"


def test_digest_notices_every_part() -> None:
    base = Split(torch.zeros(2, 3), torch.zeros(2).long())
    changed = [
        Split(torch.tensor([[0, 0, 0], [0, 0, 1.0]]), base.labels),
        Split(base.inputs, torch.tensor([0, 1])),
        Split(base.inputs.double(), base.labels),
        Split(torch.zeros(2, 1, 3), base.labels),
    ]
    assert digest_of(base) == digest_of(Split(torch.zeros(2, 3), torch.zeros(2).long()))
    assert len({digest_of(split) for split in (base, *changed)}) == 5
    assert digest_of(base, changed[0]) != digest_of(changed[0], base)


def test_lists_do_not_overlap_and_fit_the_networks(few_lists: None) -> None:
    data = load_search_data("listops", None, LISTOPS, 3)
    test = load_test_split("listops", None, LISTOPS, 3)
    splits = [data.train, data.valid, test]
    lists = {tuple(row[row > 0].tolist()) for split in splits for row in split.inputs}
    assert [len(split) for split in splits] == [100, 30, 20] and len(lists) == 150
    assert all(16 < len(row) < 64 for row in lists)
    assert data.train.inputs.dtype == torch.int64 and data.background == ()


def test_a_class_token_takes_one_place(few_lists: None) -> None:
    model = replace(LISTOPS, max_length=17, class_token=True)
    data = load_search_data("listops", None, model, 0)
    assert data.train.inputs.shape[1] <= 15
    with pytest.raises(DataError, match="max_length = 16 is too short"):
        load_search_data("listops", None, replace(model, max_length=16), 0)


def test_file_is_split_and_kept_small(tmp_path: Path) -> None:
    path = write(tmp_path, arrays())
    data = load_search_data("cifar10", path, CIFAR, 0)
    test = load_test_split("cifar10", path, CIFAR, 0)
    assert data.train.inputs.shape == (180, 3, 6, 6) and data.train.image_size == 64
    assert torch.bincount(data.valid.labels).tolist() == [2] * 10
    assert not rows(data.train.inputs) & (rows(data.valid.inputs) | rows(test.inputs))
    means = data.train.inputs.mean(dim=(0, 2, 3))
    assert torch.allclose(means, torch.zeros(3), atol=1e-5) and len(test) == 30
    assert data.label_names[0] == "airplane" and len(data.background) == 3


def test_search_reads_nothing_of_the_test_arrays(tmp_path: Path) -> None:
    content = arrays() | {"x_test": np.array([object()]), "y_test": np.array([object()])}
    path = write(tmp_path, content)
    assert len(load_search_data("cifar10", path, CIFAR, 0).train) == 180
    with pytest.raises(DataError, match=r"x_test .* is pickled"):
        load_test_split("cifar10", path, CIFAR, 0)


def test_class_names_and_label_columns_of_a_file_are_read(tmp_path: Path) -> None:
    names = [f"kind {number}" for number in range(10)]
    content = arrays() | {"class_names": np.array(names)}
    content["y_train"] = content["y_train"][:, None]
    data = load_search_data("cifar10", write(tmp_path, content), CIFAR, 0)
    assert data.label_names == tuple(names) and data.train.labels.shape == (180,)


def test_classes_of_one_name_are_told_apart() -> None:
    assert unique_names(["a", "b", "c"]) == ("a", "b", "c")
    assert unique_names(["a", "b", "a", "a"]) == ("a", "b", "a (2)", "a (3)")
    assert unique_names(["a (2)", "a", "a"]) == ("a (2)", "a", "a (2) (2)")


def spoil(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda content: content | {name: change(content[name])}


SPOILT = {
    "lacks the array y_train": lambda c: {k: v for k, v in c.items() if k != "y_train"},
    "x_train is float32 of shape": spoil("x_train", lambda x: x.astype(np.float32)),
    "channels last": spoil("x_train", lambda x: x.transpose(0, 3, 1, 2)),
    "1 colour channels, but .* read 3": spoil("x_train", lambda x: x[..., :1]),
    "holds no images": spoil("x_train", lambda x: x[:0]),
    "one integer for each of the 200": spoil("y_train", lambda y: y[:-1]),
    "y_train is float64": spoil("y_train", lambda y: y.astype(float)),
    "holds the label 10; .* 0 to 9": spoil("y_train", lambda y: y + 1),
    "holds the label -1": spoil("y_train", lambda y: y - 1),
    "at least 10 are needed": lambda c: (
        c | {"x_train": c["x_train"][:9], "y_train": np.zeros(9, int)}
    ),
    "never made smaller": spoil("x_train", lambda x: np.tile(x, (1, 11, 11, 1))),
    "y_train .* is pickled": spoil("y_train", lambda y: y.astype(object)),
}


@pytest.mark.parametrize(("message", "change"), SPOILT.items())
def test_wrong_arrays_are_refused(
    message: str, change: Callable[[Arrays], Arrays], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        load_search_data("cifar10", write(tmp_path, change(arrays())), CIFAR, 0)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut"])
def test_files_that_are_no_archives_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "images.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"is no \.npz file"):
        load_search_data("cifar10", str(tmp_path / "images.npz"), CIFAR, 0)


def test_a_plain_array_or_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros(3))
    messages = {
        "images.npy": "is no .npz file",
        "none.npz": "no data file",
        ".": "no manifest.json",
    }
    for name, message in messages.items():
        with pytest.raises(DataError, match=message):
            load_search_data("cifar10", str(tmp_path / name), CIFAR, 0)


def test_a_damaged_array_is_refused_by_name(tmp_path: Path) -> None:
    path = Path(write(tmp_path, arrays()))
    content = bytearray(path.read_bytes())
    content[5000:5100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"array x_train of .* is damaged"):
        load_search_data("cifar10", str(path), CIFAR, 0)


def test_test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    content = arrays() | {"x_test": arrays(side=5)["x_test"]}
    path = write(tmp_path, content)
    with pytest.raises(DataError, match="both should be of one size"):
        load_test_split("cifar10", path, CIFAR, 0)


MISFITS = {
    "holds images, but .* read tokens": ("digits", None, LISTOPS),
    "holds tokens, but .* read images": ("listops", None, DIGITS),
    "pass it with --data FILE.npz": ("cifar10", None, CIFAR),
    "leave out --data here.npz": ("digits", "here.npz", DIGITS),
    "no num_classes": ("listops", None, replace(LISTOPS, num_classes=None)),
    "has 10 classes, but": ("digits", None, replace(DIGITS, num_classes=2)),
    "1 colour channel, but .* read 3": ("digits", None, replace(DIGITS, input=ImageInput(8, 2, 3))),
    "8 x 8 pixels, but .* 4 x 4": ("digits", None, replace(DIGITS, input=ImageInput(4, 2, 1))),
    "16 symbols": ("listops", None, replace(LISTOPS, input=TokenInput(15))),
}


@pytest.mark.parametrize(("message", "request_"), MISFITS.items())
@pytest.mark.parametrize("load", [load_search_data, load_test_split])
def test_data_that_do_not_fit_the_space_are_refused(
    message: str, request_: tuple[str, str | None, ModelSettings], load: Callable[..., object]
) -> None:
    with pytest.raises(DataError, match=message):
        load(*request_, seed=0)


def test_names_are_known_and_the_nearest_is_suggested() -> None:
    wanted = {"cifar10": True, "digits": False, "listops": False, "synthetic": False}
    assert {name: source.needs_path for name, source in sources.SOURCES.items()} == wanted
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        load_search_data("digit", None, DIGITS, 0)
    with pytest.raises(UsageError, match="seed must be at least 0"):
        load_search_data("listops", None, LISTOPS, -1)


def test_holdout_keeps_shares_and_counts() -> None:
    labels = np.repeat([0, 1, 2], [70, 25, 5]).astype(np.int64)
    kept, held = holdout(labels, 10)
    assert sorted([*kept, *held]) == list(range(100)) and len(held) == 10
    assert np.bincount(labels[held], minlength=3).tolist() in ([7, 3, 0], [7, 2, 1])
    again = holdout(labels, 10)
    assert np.array_equal(held, again[1]) and not np.array_equal(held, np.arange(10))


def test_normaliser_agrees_with_the_plain_formula() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 3, 2), dtype=np.uint8)
    pixels[..., 1] = 7
    plain = (pixels[..., 0] - pixels[..., 0].mean()) / pixels[..., 0].std()
    ours = Normaliser.fit(pixels).apply(pixels)
    assert ours.shape == (5, 2, 3, 3) and np.abs(ours[:, 0] - plain).max() < 1e-6
    assert not ours[:, 1].any()


@pytest.mark.parametrize("scale", [None, Scale((0.3,), (0.4,))])
def test_a_digit_saved_as_an_ordinary_picture_is_read_as_it_is_stored(scale: Scale | None) -> None:
    """Its shades are 0 to 16, and a file of a picture has bytes of 0 to 255."""
    request = Request("digits", "", DIGITS, 10, 0)
    found = SOURCES["digits"].open(request).search_arrays(scale)
    black, white = (found.reading[name][0] for name in ("black", "white"))
    shades = np.rint((found.train.inputs - black) / (white - black) * 16)
    assert shades.min() == 0 and shades.max() == 16
    picture = np.rint(shades * 255 / 16)
    assert np.abs(black + (white - black) * picture / 255 - found.train.inputs).max() < 0.01
    if scale is not None:
        assert (black, white) == (np.float32(-0.3 / 0.4), np.float32(0.7 / 0.4))


def test_images_are_normalised_by_what_the_space_says() -> None:
    two = ImageInput(image_size=8, patch_size=4, channels=2)
    given = {"mean": [0.5, 0.25], "std": [0.5, 1]}
    scale = Scale.read(given, two)
    assert scale == Scale((0.5, 0.25), (0.5, 1.0)) and Scale.read({"dataset": "x"}, two) is None
    assert Scale.read(given, TokenInput(vocab_size=9)) is None, "which older spaces of texts had"
    found = Normaliser.of(*scale)
    assert found.background == (-1.0, -0.25) and found.white == (1.0, 0.75)
    for wrong in ({"mean": [0.5]}, {"mean": [0.5], "std": [0.0]}, {"mean": 0.5, "std": 0.5}):
        with pytest.raises(DataError, match="takes mean and std together"):
            Scale.read(wrong, two)
    with pytest.raises(DataError, match="the networks read, which are 3, std above 0"):
        Scale.read(given, replace(two, channels=3))

"""`nas data prepare` for classification: images of all forms, and texts as bytes."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from search_spaces.errors import DataError, UsageError
from supernet.data.prepare.image_files import read_batches, read_picture
from supernet.data.prepared import EXAMPLES, ExampleSplit
from supernet.data.sources import CIFAR10_NAMES
from supernet.data.text_files import TokenRows
from tests.support.prepare_cases import (
    cifar_batch,
    pictures,
    png,
    run,
    write_cifar,
    write_folder,
    write_jsonl,
)

CLASSIFICATION: Any = "classification"


def prepared(folder: Path, source: Path, **changes: Any) -> list[ExampleSplit]:
    """Train, valid and test of a prepared source."""
    run(folder, CLASSIFICATION, source=(source,), **changes)
    data = EXAMPLES.open(folder / "out")
    return [data.train, data.valid, EXAMPLES.open_test(folder / "out")]


def images(split: ExampleSplit) -> list[bytes]:
    assert isinstance(split.inputs, np.ndarray)
    return [image.tobytes() for image in split.inputs]


def texts(split: ExampleSplit) -> list[str]:
    assert isinstance(split.inputs, TokenRows)
    return [bytes((row - 1).astype(np.uint8)).decode() for row in split.inputs]


# -- CIFAR-10's python version --------------------------------------------------------------------


def test_cifar_batches_are_read_without_unpickling(tmp_path: Path) -> None:
    pixels, labels = write_cifar(tmp_path / "cifar")
    train, valid, test = prepared(tmp_path, tmp_path / "cifar")
    assert (
        np.array_equal(test.inputs, pixels[100:]) and test.labels.tolist() == labels[100:].tolist()
    )
    held = dict(zip(images(train) + images(valid), [*train.labels, *valid.labels], strict=True))
    assert held == {p.tobytes(): n for p, n in zip(pixels[:100], labels[:100], strict=True)}
    assert (len(train), len(valid)) == (90, 10)
    assert EXAMPLES.open(tmp_path / "out").label_names == CIFAR10_NAMES


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["ATTACKED"],)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_is_refused_unrun(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTACKED", str(tmp_path / "attacked"))
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Attack(), b"labels": [1]}, protocol))
    with pytest.raises(DataError, match=r"data_batch_1 is no batch.*savez_compressed"):
        read_batches([path])
    assert not (tmp_path / "attacked").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "attacked").exists()  # the file is as bad as it claims


@pytest.mark.parametrize("damage", ["cut", "labels", "text", "missing"])
def test_damaged_batches_are_refused(tmp_path: Path, damage: str) -> None:
    path, (pixels, labels) = tmp_path / "test_batch", pictures(6, side=32)
    data = cifar_batch(pixels, labels + (8 if damage == "labels" else 0))
    data = {"cut": data[:-900], "text": b"hello"}.get(damage, data)
    if damage != "missing":
        path.write_bytes(data)
    with pytest.raises(DataError, match="is missing|is no batch of CIFAR-10"):
        read_batches([path])


# -- .npz -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_test", [True, False])
def test_npz_images(tmp_path: Path, with_test: bool) -> None:
    pixels, labels = pictures(100)
    arrays = {"x_train": pixels, "y_train": labels}
    if with_test:
        arrays |= {"x_test": pixels[:30] // 2, "y_test": labels[:30]}
    np.savez(tmp_path / "a.npz", **arrays)
    train, valid, test = prepared(tmp_path, tmp_path / "a.npz")
    sizes = [90, 10, 30] if with_test else [81, 9, 10]
    assert [len(split) for split in (train, valid, test)] == sizes
    parts = [train, valid] if with_test else [train, valid, test]
    seen = [image for split in parts for image in images(split)]
    assert sorted(seen) == sorted(image.tobytes() for image in pixels)
    assert isinstance(train.inputs, np.memmap) and EXAMPLES.open(tmp_path / "out").label_names == (
        *"012",
    )


@pytest.mark.parametrize(
    "names",
    [
        [("train_images", "train_labels"), ("val_images", "val_labels")],
        [("images_train", "labels_train"), ("images_valid", "labels_valid")],
        [("X", "y"), ("X_dev", "y_dev")],
        [("images", "labels"), ("dev_x", "dev_y")],
        [("x_training", "y_training"), ("x_eval", "y_eval")],
    ],
)
def test_arrays_are_found_by_their_usual_names(
    tmp_path: Path, names: list[tuple[str, str]]
) -> None:
    arrays = {}
    for count, pair in zip((60, 24), names, strict=True):
        pixels, labels = pictures(count, count)
        arrays |= {pair[0]: pixels, pair[1]: labels[:, None]}
    np.savez(tmp_path / "a.npz", **arrays)
    train, valid, test = prepared(tmp_path, tmp_path / "a.npz")
    assert [len(train) + len(test), len(valid)] == [60, 24]


def test_images_need_labels_that_are_called_alike(tmp_path: Path) -> None:
    pixels, labels = pictures(60)
    np.savez(tmp_path / "a.npz", train_images=pixels, y=labels)
    lacks = r"lacks the array train_labels; it needs train_images and train_labels, and has .*, y$"
    with pytest.raises(DataError, match=lacks):
        prepared(tmp_path, tmp_path / "a.npz")


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    pixels, labels = pictures(60)
    names = np.array(["crane", "dog", "crane"])
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=labels, class_names=names)
    with pytest.raises(DataError, match=r"a\.npz names 'crane' more than once"):
        prepared(tmp_path, tmp_path / "a.npz")


def test_packed_jpegs(tmp_path: Path) -> None:
    pixels, labels = pictures(60, side=16)
    packed = [png(image, "JPEG") for image in pixels]
    offsets = np.cumsum([0, *map(len, packed)])
    data = np.frombuffer(b"".join(packed), np.uint8)
    arrays = {"train_jpeg": data, "train_offset": offsets, "train_label": labels.astype(np.uint8)}
    np.savez(tmp_path / "a.npz", **arrays, class_names=np.array(["a", "b", "c"]))
    train, _, test = prepared(tmp_path, tmp_path / "a.npz")
    assert isinstance(train.inputs, np.ndarray) and train.inputs.shape == (49, 16, 16, 3)
    near = [
        np.abs(pixels.astype(int) - image).mean(axis=(1, 2, 3)).argmin() for image in test.inputs
    ]
    assert labels[near].tolist() == test.labels.tolist()
    assert EXAMPLES.open(tmp_path / "out").label_names == ("a", "b", "c")


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 3), (8, 8, 4)])
def test_channels_of_arrays_come_last(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, *shape), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=np.arange(40) % 2)
    train = prepared(tmp_path, tmp_path / "a.npz")[0]
    assert np.asarray(train.inputs).shape[1:] == (8, 8, *(shape[2:] or (1,)))


BAD_NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "floats": ({"x_train": np.zeros((9, 8, 8, 3))}, "x_train of .* should be uint8"),
    "labels": ({"y_train": np.zeros(8, np.int64)}, "y_train of .* one integer for each of the 100"),
    "negative": ({"y_train": np.full(100, -1)}, "labels count from 0"),
    "channels first": (
        {"x_train": np.zeros((100, 3, 8, 8), np.uint8)},
        "channels last",
    ),
    "one class": ({"y_train": np.zeros(100, np.int64)}, "a.npz has one label only, '0'; there"),
    "objects": ({"y_train": np.array([None] * 100)}, "unsafe to read"),
    "wide": (
        {"x_train": np.zeros((100, 8, 9, 3), np.uint8)},
        "9 x 8 pixels; they should be square",
    ),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_arrays_are_refused(tmp_path: Path, case: str) -> None:
    arrays, words = BAD_NPZ[case]
    pixels, labels = pictures(100)
    np.savez(tmp_path / "a.npz", **({"x_train": pixels, "y_train": labels} | arrays))
    with pytest.raises(DataError, match=words):
        prepared(tmp_path, tmp_path / "a.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


# -- folders --------------------------------------------------------------------------------------


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    pixels = write_folder(tmp_path / "train")
    write_folder(tmp_path / "test", count=6)
    train, valid, test = prepared(tmp_path, tmp_path / "train", test=(tmp_path / "test",))
    assert [len(split) for split in (train, valid, test)] == [27, 3, 6]
    assert sorted(images(train) + images(valid)) == sorted(image.tobytes() for image in pixels)
    assert sorted(valid.labels) == [0, 1, 2] == sorted(set(test.labels.tolist()))
    assert EXAMPLES.open(tmp_path / "out").label_names == ("class0", "class1", "class2")


def test_grey_pictures_have_one_channel(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    paths = sorted((tmp_path / "train").rglob("*.png"))
    for number, path in enumerate(paths):
        path.write_bytes(png(np.full((4, 4), number, np.uint8)))
    # Sixteen bits of grey keep the upper eight, and a palette's colours are what it says.
    Image.fromarray(np.full((4, 4), 200 << 8, np.uint16)).save(paths[0])
    splits = prepared(tmp_path, tmp_path / "train")
    pixels = np.concatenate([np.asarray(split.inputs) for split in splits])
    assert pixels.shape[1:] == (4, 4, 1)
    assert sorted(image.max() for image in pixels) == [*range(1, len(paths)), 200]
    palette = Image.fromarray(np.full((4, 4, 3), (9, 0, 0), np.uint8)).convert("P")
    palette.save(paths[1], transparency=bytes([0, 9]))
    mixed = prepared(tmp_path / "mixed", tmp_path / "train")
    assert {np.asarray(split.inputs).shape[1:] for split in mixed} == {(4, 4, 3)}


def test_pictures_are_cut_and_scaled(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    wide = np.zeros((10, 20, 3), np.uint8)
    wide[:, 5:15] = 200  # the middle square
    (tmp_path / "train/class0/000.png").write_bytes(png(wide))
    with pytest.raises(DataError, match=r"pixels, but .*png.*--image-size"):
        prepared(tmp_path, tmp_path / "train")
    splits = prepared(tmp_path, tmp_path / "train", image_size=5)
    assert all(split.inputs.shape[1:] == (5, 5, 3) for split in splits)  # type: ignore[union-attr]
    assert bytes([200] * 75) in [image for split in splits for image in images(split)]


@pytest.mark.parametrize("case", ["damaged", "empty class", "no class", "few", "other classes"])
def test_bad_folders_are_refused(tmp_path: Path, case: str) -> None:
    write_folder(tmp_path / "train", count=3 if case == "few" else 30)
    changes: dict[str, Any] = {}
    if case == "damaged":
        (tmp_path / "train/class1/001.png").write_bytes(b"no picture")
    elif case == "empty class":
        (tmp_path / "train/class3").mkdir()
    elif case == "other classes":
        write_folder(tmp_path / "test")
        (tmp_path / "test/class1").rename(tmp_path / "test/klass1")
        changes["test"] = (tmp_path / "test",)
    source = tmp_path / "train/class0" if case == "no class" else tmp_path / "train"
    words = {
        "damaged": r"001\.png: is no PNG",
        "few": "too few",
        "other classes": "klass1 only in test and class1 only in train; they should be the same",
    }
    with pytest.raises(DataError, match=words.get(case, "holds no")):
        prepared(tmp_path, source, **changes)
    assert not list(tmp_path.glob("*out*"))


def test_pictures_that_cannot_be_read_are_told_and_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    (tmp_path / "train/class1/gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"gone\.png: cannot be read: No such file"):
        prepared(tmp_path, tmp_path / "train")
    splits = prepared(tmp_path, tmp_path / "train", skip_bad=True)
    assert sum(map(len, splits)) == 30


def test_a_class_alone_is_none_when_the_others_are_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    for file in [*(tmp_path / "train/class0").iterdir(), *(tmp_path / "train/class2").iterdir()]:
        file.write_bytes(b"no picture")
    with pytest.raises(DataError, match="train has one label only, 'class1'; there should be two"):
        prepared(tmp_path, tmp_path / "train", skip_bad=True)


def test_pipes_are_no_pictures(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    os.mkfifo(tmp_path / "train/class1/x.png")
    with pytest.raises(DataError, match=r"class1/x\.png: is a pipe or a device, and no file; mend"):
        prepared(tmp_path, tmp_path / "train")
    assert sum(map(len, prepared(tmp_path, tmp_path / "train", skip_bad=True))) == 30
    pictured = sorted((tmp_path / "train").rglob("*.png"))
    rows = [f"train/{file.parent.name}/{file.name},{file.parent.name}" for file in pictured]
    (tmp_path / "a.csv").write_text("\n".join(["image,label", *rows]))
    with pytest.raises(DataError, match=r"a\.csv:\d+: \S+x\.png: is a pipe or a device, and no"):
        prepared(tmp_path / "table", tmp_path / "a.csv")


def test_what_macos_leaves_is_passed_over(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    (tmp_path / "train/class1/._1.png").write_bytes(b"no picture")
    (tmp_path / "train/__MACOSX/class1").mkdir(parents=True)
    (tmp_path / "train/__MACOSX/class1/._1.png").write_bytes(b"no picture")
    assert sum(map(len, prepared(tmp_path, tmp_path / "train"))) == 30
    assert EXAMPLES.open(tmp_path / "out").label_names == ("class0", "class1", "class2")


def test_a_picture_that_is_too_large_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "train")
    for most, side in ((150, 13), (150, 20)):  # too large, and far too large
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        (tmp_path / "train/class1/001.png").write_bytes(png(np.zeros((side, side, 3), np.uint8)))
        words = rf"001\.png: is too large: it has {side**2} pixels, and 150 are the most"
        with pytest.raises(DataError, match=words):
            prepared(tmp_path, tmp_path / "train")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.gif", r"class1 holds pictures of the form \.gif, and only PNG and JPEG files are read"),
        ("a.TIFF", r"class1 holds pictures of the form \.tiff, and"),
        ("a.txt", "class1 holds texts, .*a table, such as a .csv or .jsonl file with the columns"),
        ("a.mp3", "class1 holds no PNG or JPEG files; a folder of images has"),
    ],
)
def test_what_a_folder_holds_in_place_of_pictures_is_named(
    tmp_path: Path, name: str, words: str
) -> None:
    write_folder(tmp_path / "train")
    for file in (tmp_path / "train/class1").iterdir():
        file.unlink()
    (tmp_path / "train/class1" / name).write_text("content")
    with pytest.raises(DataError, match=words):
        prepared(tmp_path, tmp_path / "train")


def test_texts_in_one_folder_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    with pytest.raises(DataError, match="holds texts, and no PNG or JPEG files"):
        prepared(tmp_path, tmp_path)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
@pytest.mark.parametrize("grey", [False, True])
def test_pictures_are_turned_as_their_camera_says(tmp_path: Path, form: str, grey: bool) -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8, :8] = 250
    upright = Image.fromarray(pixels[..., 0] if grey else pixels)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        upright.save(tmp_path / "a", form, exif=exif, quality=100)
        with Image.open(tmp_path / "a") as image:
            right = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        assert (read_picture(tmp_path / "a", 3, 16) == right).all()
    upright.save(tmp_path / "a", "JPEG", exif=b"Exif\0\0nothing of the kind")
    assert read_picture(tmp_path / "a", 3, 16)[2, 2, 0] > 200  # it says nothing


def test_names_that_are_not_utf8_are_written_escaped(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"caf\xe9")
    write_folder(source)
    (source / "class1/001.png").rename(source / "class1" / os.fsdecode(b"\xe9.png"))
    (source / "class2").rename(source / os.fsdecode(b"class\xe9"))
    made = run(tmp_path, CLASSIFICATION, source=(source,))
    assert made.manifest.label_names == ["class0", "class1", "class\\udce9"]
    assert [file.name for file in made.manifest.inputs] == ["caf\\udce9"]
    assert run(tmp_path, CLASSIFICATION, source=(source,)).found
    texts = tmp_path / os.fsdecode(b"\xe9.jsonl")
    write_jsonl(texts)
    read = run(tmp_path, CLASSIFICATION, source=(texts,), out=tmp_path / "texts").manifest
    assert [file.name for file in read.inputs] == ["\\udce9.jsonl"]


def test_two_folders_of_one_split_are_told(tmp_path: Path) -> None:
    for name in ("train_a", "train_b", "test"):
        write_folder(tmp_path / "pets" / name)
    with pytest.raises(DataError, match="train_a and train_b, which are both train"):
        prepared(tmp_path, tmp_path / "pets")


@pytest.mark.parametrize("names", [("training", "testing"), ("pets_train", "pets_test")])
def test_folders_of_splits_are_found_by_a_word_of_their_names(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name, count in zip(names, (30, 12), strict=True):
        write_folder(tmp_path / "pets" / name, count)
    splits = prepared(tmp_path, tmp_path / "pets")
    assert [len(split) for split in splits] == [27, 3, 12]


def test_a_folder_of_no_split_beside_others_is_told(tmp_path: Path) -> None:
    for name in ("train", "extra"):
        write_folder(tmp_path / "pets" / name)
    with pytest.raises(DataError, match=r"pets.extra is called by no split, unlike train beside"):
        prepared(tmp_path, tmp_path / "pets")


def test_classes_may_be_called_as_splits_are(tmp_path: Path) -> None:
    write_folder(tmp_path / "cars")
    for number, name in enumerate(("train", "freight-train", "test")):
        (tmp_path / f"cars/class{number}").rename(tmp_path / "cars" / name)
    prepared(tmp_path, tmp_path / "cars")
    assert EXAMPLES.open(tmp_path / "out").label_names == ("freight-train", "test", "train")


@pytest.mark.parametrize("form", ["folder", "npz", "cifar", "texts"])
def test_several_splits_are_no_validation_split(tmp_path: Path, form: str) -> None:
    write_folder(tmp_path / "mine")
    given = tmp_path / "given"
    if form == "npz":
        given = tmp_path / "given.npz"
        parts = {part: pictures(30, seed) for seed, part in enumerate(("train", "test"))}
        arrays = {f"x_{part}": pixels for part, (pixels, _) in parts.items()}
        np.savez(given, **arrays, **{f"y_{part}": labels for part, (_, labels) in parts.items()})
    elif form == "cifar":
        write_cifar(given)
    else:
        for split in ("train", "valid"):
            (given / split).mkdir(parents=True)
            if form == "texts":
                write_jsonl(given / split / "a.jsonl")
            else:
                write_folder(given / split)
    source = tmp_path / "mine"
    if form == "texts":
        source = tmp_path / "mine.jsonl"
        write_jsonl(source)
    with pytest.raises(DataError, match=r"given\S* holds .* and was given for valid: give what"):
        prepared(tmp_path, source, valid=(given,))


def test_arrays_of_a_split_of_its_own_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    for seed, (file, part) in enumerate([("a", "train"), ("b", "valid"), ("c", "train")]):
        pixels, labels = pictures(30, seed)
        np.savez(tmp_path / f"{file}.npz", **{f"x_{part}": pixels, f"y_{part}": labels})
    given = {"valid": (tmp_path / "b.npz",), "test": (tmp_path / "c.npz",)}
    assert [len(one) for one in prepared(tmp_path, tmp_path / "a.npz", **given)] == [30, 30, 30]


def test_a_split_may_lack_the_last_numbered_classes_and_no_others(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "test")
    for split in ("train", "test"):
        for number in range(3):
            (tmp_path / split / f"class{number}").rename(tmp_path / split / str(number))
    (tmp_path / "test/2").rename(tmp_path / "away")
    test = prepared(tmp_path / "good", tmp_path / "train", test=(tmp_path / "test",))[2]
    assert set(test.labels.tolist()) == {0, 1}
    (tmp_path / "test/1").rename(tmp_path / "test/2")  # it has no pictures of 1
    with pytest.raises(DataError, match="of test are not those of train: 1 only in train"):
        prepared(tmp_path / "bad", tmp_path / "train", test=(tmp_path / "test",))


# -- texts ----------------------------------------------------------------------------------------


def test_texts_are_bytes(tmp_path: Path) -> None:
    given = write_jsonl(tmp_path / "a.jsonl")
    train, valid, test = prepared(tmp_path, tmp_path / "a.jsonl", tokenizer="bytes")
    assert sorted(texts(train) + texts(valid) + texts(test)) == sorted(given)
    assert [len(split) for split in (train, valid, test)] == [33, 3, 4]
    for split in (train, valid, test):
        assert [given.index(text) % 2 for text in texts(split)] == split.labels.tolist()
    assert EXAMPLES.open(tmp_path / "out").label_names == ("no", "yes")


def test_texts_are_byte_pairs_that_their_training_split_taught(tmp_path: Path) -> None:
    given = write_jsonl(tmp_path / "a.jsonl")
    splits = prepared(tmp_path, tmp_path / "a.jsonl", vocab_size=262)
    data = EXAMPLES.open(tmp_path / "out")
    tokenizer = data.source_tokenizer
    assert tokenizer is not None and tokenizer.vocab_size == 262
    rows = [[row.tolist() for row in split.inputs] for split in splits]
    found = [tokenizer.decode(part) for part in rows]
    assert sorted(text.strip() for part in found for text in part) == sorted(given)
    assert rows[0] == tokenizer.encode([text.strip() for text in found[0]])
    seen = set(itertools.chain(*itertools.chain(*rows)))
    assert 0 not in seen and max(seen) >= 257  # padding is of no text, and pairs were joined
    assert data.settings == {"tokenizer": "bpe", "vocab_size": 262, "max_length": 512}
    prepared(tmp_path, tmp_path / "a.jsonl", vocab_size=262, out=tmp_path / "again")
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (
        tmp_path / "again/tokenizer.json"
    ).read_bytes()


def test_long_texts_are_cut_and_counted(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", labels=(10, 9))
    changes = {"valid": (tmp_path / "a.jsonl",), "test": (tmp_path / "a.jsonl",)}
    run(
        tmp_path,
        CLASSIFICATION,
        source=(tmp_path / "a.jsonl",),
        max_length=5,
        tokenizer="bytes",
        allow_overlap=True,
        **changes,
    )
    data = EXAMPLES.open(tmp_path / "out")
    assert data.longest == 5 and data.label_names == ("9", "10")
    assert data.train.labels.tolist() == [1, 0] * 20


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"a\.jsonl:3: not JSON"),
        ('{"text": "", "label": 1}', r"a\.jsonl:3: the text is empty; mend it, or .* --skip-bad"),
        ('{"text": "a", "label": null}', r"a\.jsonl:3: has no label"),
        ('{"text": "a", "label": 1.5}', r"a\.jsonl:3: label is 1.5; a label is a word"),
        ("[1]", r"a\.jsonl:3: a line is a JSON object, and this is \[1\]"),
        ('{"text": "a"}', r"a\.jsonl:3: has no label, only 'text'"),
        ("[" * 100_000, r"a\.jsonl:3: not JSON"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text("utf-8").splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:2], line, *lines[3:]]), "utf-8")
    with pytest.raises(DataError, match=words):
        prepared(tmp_path, tmp_path / "a.jsonl")


def test_unknown_and_single_labels_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    write_jsonl(tmp_path / "b.jsonl", labels=("no", "perhaps"))
    with pytest.raises(DataError, match=r"b\.jsonl:2: the label 'perhaps' does not occur"):
        prepared(tmp_path, tmp_path / "a.jsonl", test=(tmp_path / "b.jsonl",))
    write_jsonl(tmp_path / "c.jsonl", labels=("no",))
    with pytest.raises(DataError, match="one label only, 'no'"):
        prepared(tmp_path, tmp_path / "c.jsonl")


FOREIGN: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": 8000}, "--vocab-size is for vocabularies that are learnt, and pictures have"),
    ({"tokenizer": "unigram"}, "--tokenizer unigram is for vocabularies that are learnt"),
    ({"tokenizer": "bytes"}, "--tokenizer bytes is for text"),
    ({"joint": False}, "--separate is for translation"),
    ({"max_ratio": 2.0}, "--max-ratio is for translation"),
]
FOREIGN_TO_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": 8000}, r"larger than a\.jsonl can give; pass --vocab-size 269 or less"),
    ({"vocab_size": 256}, "bytes and padding alone need 257; pass --vocab-size 257 or more"),
    (
        {"tokenizer": "bytes", "vocab_size": 300},
        "--vocab-size is for vocabularies that are learnt, and each byte is a token here",
    ),
    ({"tokenizer": "unigram"}, "labelled texts learn bpe; or give bytes, or the folder of"),
    *FOREIGN[-2:],
]


@pytest.mark.parametrize(("changes", "words"), FOREIGN_TO_TEXTS)
def test_options_that_do_not_fit_texts_with_labels_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match=words):
        prepared(tmp_path, tmp_path / "a.jsonl", **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": (Path("a"),)}, "leave out --target"),
        ({"valid": (Path("a"), Path("b"))}, "--valid is given 2 times"),
        ({"max_length": 9}, "--max-length is for text"),
        ({"image_size": 0}, "--image-size must be at least 1"),
        *FOREIGN,
    ],
)
def test_options_of_other_tasks_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    write_folder(tmp_path / "train")
    with pytest.raises(UsageError, match=words):
        prepared(tmp_path, tmp_path / "train", **changes)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataError, match="of no known form"):
        prepared(tmp_path, tmp_path / "a.txt")

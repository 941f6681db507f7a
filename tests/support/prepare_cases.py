"""Small data of all forms that `nas data prepare` reads, generated."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from search_spaces.tasks import TaskName
from supernet.data.prepare import Prepared, prepare
from supernet.data.prepare.plan import PrepareRequest
from supernet.data.synthetic import generate

COUNTS = {"train": 200, "valid": 20, "test": 30}


def silent(label: str, done: int, total: int) -> None:
    """No report."""


def write_pairs(folder: Path) -> None:
    """`train.en`, `train.de`, `valid.en.gz` and so on; validation is packed."""
    sentences, start = generate(sum(COUNTS.values()), 5), 0
    for split, count in COUNTS.items():
        part, start = sentences[start : start + count], start + count
        for ending, lines in (("en", [s.source for s in part]), ("de", [s.target for s in part])):
            data = "".join(f"{line}\n" for line in lines).encode()
            if split == "valid":
                (folder / f"{split}.{ending}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / f"{split}.{ending}").write_bytes(data)


def request(folder: Path, task: TaskName = "translation", **changes: Any) -> PrepareRequest:
    """The request for what `write_pairs` wrote."""
    given: dict[str, Any] = {"out": folder / "out", "source": (folder / "train.en",)}
    if task in ("translation", "language_modelling"):
        given |= {"vocab_size": 150}
    if task == "translation":
        given |= {"target": (folder / "train.de",)}
        given |= {"valid": (folder / "valid",), "test": (folder / "test",)}
    elif task == "language_modelling":
        given |= {"valid": (folder / "valid.en.gz",), "test": (folder / "test.en",)}
    return PrepareRequest(task=task, **(given | changes))


def run(folder: Path, task: TaskName = "translation", **changes: Any) -> Prepared:
    """Prepare what `request` asks for."""
    return prepare(request(folder, task, **changes), silent)


@contextmanager
def pairs_on_server(home: Path, scratch: Path) -> Iterator[str]:
    """While a service with that home has a data set for translation; its name."""
    folder = home / "data" / "pairs"
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_pairs(scratch)
    run(scratch, out=folder)
    try:
        yield folder.name
    finally:
        shutil.rmtree(folder)


def pictures(count: int, seed: int = 0, side: int = 8) -> tuple[NDArray[Any], NDArray[Any]]:
    """Random images uint8 ``(count, side, side, 3)`` and labels 0, 1, 2, 0, …"""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return pixels, np.arange(count, dtype=np.int64) % 3


def png(pixels: NDArray[Any], form: str = "PNG") -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def write_folder(folder: Path, count: int = 30, side: int = 8) -> NDArray[Any]:
    """A folder for each of three classes; the images in the order they are read in."""
    pixels, labels = pictures(count, side=side)
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / f"class{label}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
    return pixels[np.argsort(labels, kind="stable")]


def write_jsonl(path: Path, count: int = 40, labels: tuple[Any, ...] = ("no", "yes")) -> list[str]:
    """Texts of different lengths, with labels in turn."""
    texts = ["ä" * (1 + number % 7) + f" {number}" for number in range(count)]
    objects = [{"text": t, "label": labels[n % len(labels)]} for n, t in enumerate(texts)]
    path.write_text("".join(json.dumps(found) + "\n" for found in objects), "utf-8")
    return texts


def cifar_batch(pixels: NDArray[Any], labels: NDArray[Any]) -> bytes:
    """A batch file instruction by instruction, as Python 2 wrote the published ones."""
    planes = pixels.transpose(0, 3, 1, 2).tobytes()
    numbers = b"".join(b"K" + bytes([label]) for label in labels.tolist())
    half = len(numbers) // 4 * 2  # lists come in several parts
    listed = b"]q\x05(" + numbers[:half] + b"e(" + numbers[half:] + b"e"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t"
        b"(K\x01K" + bytes([len(labels)]) + b"M\x00\x0c\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87R"
        b"\x89T" + struct.pack("<i", len(planes)) + planes + b"tb"
    )
    names = b"]q\x0c(U\x05a.pngU\x05b.pnge"
    parts = [b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x07batch 1q\x03", b"U\x06labelsq\x04", listed]
    return b"".join([*parts, b"U\x04dataq\x06", array, b"U\tfilenamesq\x0b", names, b"u."])


def write_cifar(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The folder of CIFAR-10's python version with 20 images a file; the training images."""
    folder.mkdir(parents=True)
    pixels, labels = pictures(120, side=32)
    for number in range(6):
        part = slice(20 * number, 20 * number + 20)
        name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
        (folder / name).write_bytes(cifar_batch(pixels[part], labels[part]))
    return pixels, labels

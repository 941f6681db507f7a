"""The lines of model cards: what becomes of a picture before the network sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from supernet.data.prepare.image_files import read_picture
from supernet.export.usage import PICTURE
from tests.support.prepare_cases import pictures, png

GREY = np.linspace(0, 2**16 - 1, 64).astype(np.uint16).reshape(8, 8)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pixels", [GREY, pictures(1)[0][0]])
def test_pictures_are_read_as_the_data_were(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pixels: Any,
    mode: str,
    channels: int,
    turned: bool,
) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(png(pixels))
    if turned:
        exif = Image.Exif()
        exif[0x0112] = 6
        with Image.open(file) as upright:
            upright.save(file, exif=exif)
    reading = {"side": 8, "black": [0.0] * channels, "white": [255.0] * channels}
    (tmp_path / "reading.json").write_text(json.dumps(reading))
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {
        "Image": Image,
        "ImageOps": ImageOps,
        "Path": Path,
        "json": json,
        "np": np,
    }
    exec(PICTURE.format(mode=mode, enlarged=""), known)
    expected = read_picture(file, channels, 8)
    assert len(np.unique(expected)) > 32
    np.testing.assert_allclose(known["inputs"][0].transpose(1, 2, 0), expected, atol=1e-3)

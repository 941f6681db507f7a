"""Augmentation: against a loop over images, determinism, refusals."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.errors import UsageError
from supernet.data.augment import augment
from supernet.data.augmentation import Augmentation, parse_augmentation


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(batch: int = 64, channels: int = 2, height: int = 6, width: int = 7) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=seeded(9))


def all_shifts(image: Tensor, most: int, fill: Tensor) -> list[Tensor]:
    """Every shifted version of one image ``(C, H, W)``, by padding and cutting."""
    _, height, width = image.shape
    padded = functional.pad(image - fill, (most,) * 4) + fill
    steps = range(2 * most + 1)
    return [padded[:, y : y + height, x : x + width] for y in steps for x in steps]


@pytest.mark.parametrize(("text", "fill"), [("shift=2", (-1.0, 3.0)), ("crop=2", (0.0, 0.0))])
def test_moves_give_padded_windows_and_all_of_them(text: str, fill: tuple[float, float]) -> None:
    one = images(batch=1)
    moved = augment(one.expand(800, -1, -1, -1), text, seeded(), background=(-1.0, 3.0))
    windows = torch.stack(all_shifts(one[0], 2, torch.tensor(fill).view(2, 1, 1)))
    distance = (moved.unsqueeze(1) - windows).abs().amax(dim=(2, 3, 4))
    hits = torch.bincount(distance.argmin(dim=1), minlength=25)
    assert distance.min(dim=1).values.max() < 1e-6
    assert len(hits) == 25 and hits.min() > 10


def test_images_stay_in_their_places() -> None:
    batch = torch.arange(1.0, 51).view(50, 1, 1, 1).expand(-1, 3, 6, 6)
    moved = augment(batch, "shift=3,flip", seeded())
    assert torch.equal(moved.amax(dim=(1, 2, 3)), batch[:, 0, 0, 0])
    assert torch.equal(moved[:, 0], moved[:, 2])
    assert len({tuple(image.flatten().tolist()) for image in (moved[:, 0] > 0).float()}) > 10


def test_flip_mirrors_about_half() -> None:
    before = images(batch=400)
    after = augment(before, "flip", seeded())
    kept = (after == before).flatten(1).all(dim=1)
    mirrored = (after == before.flip(-1)).flatten(1).all(dim=1)
    assert bool((kept ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


def test_generator_alone_decides_and_input_is_not_written_to() -> None:
    before = images()
    copy = before.clone()
    chosen = Augmentation(shift=1, crop=1, flip=True)
    first, again, other = (augment(before, chosen, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, copy)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.uint8])
def test_dtype_and_shape_are_kept(dtype: torch.dtype) -> None:
    changed = augment(images().abs().to(dtype), "shift=1,crop=2,flip", seeded())
    assert changed.dtype == dtype and changed.shape == images().shape


def test_no_augmentation_returns_the_input_even_for_tokens() -> None:
    tokens = torch.ones(2, 5, dtype=torch.int64)
    assert augment(tokens, "", seeded()) is tokens
    with pytest.raises(UsageError, match="leave it empty for tokens"):
        augment(tokens, "flip", seeded())


def test_empty_batch_passes() -> None:
    assert augment(images(batch=0), "shift=1,flip", seeded()).shape == (0, 2, 6, 7)


def test_too_large_moves_and_wrong_backgrounds_are_refused() -> None:
    augment(images(), "shift=5", seeded())
    with pytest.raises(UsageError, match="out of sight"):
        augment(images(), "shift=6", seeded())
    with pytest.raises(UsageError, match="3 values for 2 channels"):
        augment(images(), "shift=1", seeded(), background=(0.0, 0.0, 0.0))


@pytest.mark.parametrize("text", ["", "shift=1", "crop=4,flip", "shift=1,crop=2,flip"])
def test_text_form_round_trips(text: str) -> None:
    assert str(parse_augmentation(text)) == text


@pytest.mark.parametrize(
    "text", ["shift", "shift=", "shift=-1", "shift=1.5", "flip=1", "rotate=3", "shift=1,shift=2"]
)
def test_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="augmentation"):
        parse_augmentation(text)


def test_strength_must_be_a_whole_number() -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(UsageError, match="whole number"):
            Augmentation(shift=wrong)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_cuda_images_with_a_cpu_generator_match_the_cpu() -> None:
    chosen = Augmentation(shift=1, crop=2, flip=True)
    on_cuda = augment(images().cuda(), chosen, seeded(3))
    assert torch.equal(on_cuda.cpu(), augment(images(), chosen, seeded(3)))

"""Random changes of training images that leave their label as it is.

Written for a whole batch at once, on whatever device it lies. Shapes: B batch, C channels,
H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.errors import UsageError
from supernet.data.augmentation import Augmentation, parse_augmentation

MOVE_SHARE = 0.6


def augment(
    images: Tensor,
    augmentation: Augmentation | str,
    generator: torch.Generator,
    background: Sequence[float] = (),
) -> Tensor:
    """Changed copies of a batch of images; every image is changed on its own.

    Args:
        images: ``(B, C, H, W)``, any dtype and device. Not written to.
        augmentation: what to change, or its text form.
        generator: source of the random numbers; may lie on another device than the images.
        background: one value per channel for `shift` and `warp`, see `SearchData.background`;
            0 where empty.

    Returns:
        ``(B, C, H, W)`` of the same dtype and device; `images` itself if nothing is to change.

    Raises:
        UsageError: when the input is not a batch of images, a shift is as large as the image, or
            the background has another number of channels.
    """
    chosen = parse_augmentation(augmentation) if isinstance(augmentation, str) else augmentation
    if chosen == Augmentation():
        return images
    _check(images, chosen, background)
    if chosen.shift:
        images = _moved(images, chosen.shift, background, generator)
    if chosen.crop:
        images = _moved(images, chosen.crop, (), generator)
    if chosen.warp:
        images = _warped(images, chosen.warp, background, generator)
    return _flipped(images, generator) if chosen.flip else images


def _check(images: Tensor, chosen: Augmentation, background: Sequence[float]) -> None:
    if images.ndim != 4:
        raise UsageError(
            f"augmentation {str(chosen)!r} needs images (batch, channels, height, width), "
            f"not a tensor of shape {tuple(images.shape)}; leave it empty for tokens"
        )
    if max(chosen.shift, chosen.crop) >= min(images.shape[2:]):
        raise UsageError(
            f"augmentation {str(chosen)!r} would move images of {images.shape[2]} x "
            f"{images.shape[3]} pixels out of sight; move by less than their side"
        )
    if background and len(background) != images.shape[1]:
        raise UsageError(
            f"the background has {len(background)} values for {images.shape[1]} channels"
        )


def _moved(images: Tensor, most: int, fill: Sequence[float], generator: torch.Generator) -> Tensor:
    batch, channels, height, width = images.shape
    values = images.new_tensor(tuple(fill) or (0.0,) * channels)
    padded = values.view(1, channels, 1, 1).repeat(batch, 1, height + 2 * most, width + 2 * most)
    padded[:, :, most : most + height, most : most + width] = images
    offsets = torch.randint(
        0, 2 * most + 1, (2, batch, 1), generator=generator, device=generator.device
    ).to(images.device)
    rows = offsets[0] + torch.arange(height, device=images.device)
    columns = offsets[1] + torch.arange(width, device=images.device)
    rows = rows.view(batch, 1, height, 1).expand(-1, channels, -1, width + 2 * most)
    columns = columns.view(batch, 1, 1, width).expand(-1, channels, height, -1)
    return padded.gather(2, rows).gather(3, columns)


def _warped(
    images: Tensor, strength: int, fill: Sequence[float], generator: torch.Generator
) -> Tensor:
    batch, channels = images.shape[:2]
    draws = torch.rand((4, batch), generator=generator, device=generator.device)
    draws = (draws.to(images.device) * 2.0 - 1.0) * (strength / 100.0)
    angle, scale = torch.deg2rad(draws[0] * 100.0), 1.0 + draws[1]
    cos, sin = scale * angle.cos(), scale * angle.sin()
    move_x, move_y = draws[2:] * (2.0 * MOVE_SHARE)  # the grid runs from -1 to 1: a side is 2
    rows = (torch.stack((cos, -sin, move_x), dim=1), torch.stack((sin, cos, move_y), dim=1))
    grid = functional.affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
    # grid_sample fills with 0, so background is made 0 for it and put back afterwards.
    level = images.new_tensor(tuple(fill) or (0.0,) * channels).view(1, channels, 1, 1)
    moved = functional.grid_sample(
        (images - level).float(), grid, mode="bilinear", align_corners=False
    )
    return moved.to(images.dtype) + level


def _flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    chance = torch.rand(len(images), generator=generator, device=generator.device)
    flip = (chance < 0.5).to(images.device).view(-1, 1, 1, 1)
    return torch.where(flip, images.flip(-1), images)

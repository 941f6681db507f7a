"""Which random changes of training images are asked for, as text.

Plain values, which a request is checked by; `supernet.data.augment` changes images.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from search_spaces.errors import UsageError

EXAMPLE = "for example 'shift=1' or 'crop=4,flip'"
STRENGTHS = ("shift", "crop", "warp")


@dataclass(frozen=True, slots=True)
class Augmentation:
    """What is changed, and by how much.

    Attributes:
        shift: images move by up to this many pixels along each axis; what comes into view is
            background.
        crop: the same move, but what comes into view is 0, the mean colour of normalised images:
            padding by `crop` on all sides and cutting out a window at random.
        warp: images are turned by up to this many degrees, enlarged or shrunk by up to this many
            per cent and moved by up to 0.6 times as many per cent of their side; what comes into
            view is background.
        flip: half of the images are mirrored left to right.

    Raises:
        UsageError: on a negative or fractional strength.
    """

    shift: int = 0
    crop: int = 0
    warp: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        for name in STRENGTHS:
            strength = getattr(self, name)
            if not isinstance(strength, int) or isinstance(strength, bool) or strength < 0:
                raise UsageError(f"augmentation {name} is a whole number, not {strength!r}")

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = (name if value is True else f"{name}={value}" for name, value in values.items())
        return ",".join(part for part, value in zip(parts, values.values(), strict=True) if value)


def parse_augmentation(text: str) -> Augmentation:
    """Read names and strengths such as ``shift=1`` or ``crop=4,flip``; empty text is none.

    Raises:
        UsageError: on an unknown or repeated name, or a strength that is no whole number.
    """
    strengths: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in strengths:
            raise UsageError(f"augmentation {name!r} is given twice in {text!r}")
        if part == "flip":
            strengths[name] = 1
        elif name in STRENGTHS and value.isascii() and value.isdigit():
            strengths[name] = int(value)
        else:
            raise UsageError(
                f"augmentation {part!r} is not understood; allowed are shift=PIXELS, crop=PIXELS, "
                f"warp=STRENGTH and flip, joined by commas, {EXAMPLE}"
            )
    flip = bool(strengths.pop("flip", 0))
    return Augmentation(**strengths, flip=flip)

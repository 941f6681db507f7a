"""What is being timed: a latency without its workload has no meaning."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

from search_spaces.costs.states import Allocator
from search_spaces.errors import UsageError

Dtype = Literal["float32", "bfloat16"]
Mode = Literal["forward", "generate", "decode", "prefill"]
Runtime = Literal["eager", "graph", "compile"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
MODES: tuple[Mode, ...] = get_args(Mode)
ALLOCATORS: tuple[Allocator, ...] = get_args(Allocator)
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
# What a network does behind a context, besides reading it: see `Workload.timed_as`.
BEHIND_CONTEXT: tuple[Mode, ...] = ("decode", "prefill")

_FIELD_OF_KEY = {
    "batch": "batch",
    "source": "source_length",
    "target": "target_length",
    "beam": "beam",
    "dtype": "dtype",
    "mode": "mode",
    "context": "context",
    "allocator": "allocator",
    "runtime": "runtime",
}
KEYS = tuple(_FIELD_OF_KEY)
"""What may be said of a workload."""
_SIZES = ("batch", "source", "target", "beam", "context")
_OPTIONAL = ("target", "beam", "context")
_EXAMPLE = "batch=1,source=30,target=30,beam=5"
_LARGEST_SIZE = 10_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of work a network is timed on.

    Attributes:
        batch: sequences or images per call, at least 1.
        source_length: tokens of the input (for images: patches), at least 1.
        target_length: tokens of the output, or None for a network without a decoder.
        beam: width of the beam search; only with mode ``generate``.
        dtype: ``float32``, or ``bfloat16`` for autocast.
        mode: ``forward`` is one pass over whole sequences; ``generate`` writes
            `target_length` tokens one after the other. With `positions_read` positions,
            ``prefill`` reads them in one call, for the logits of the last one, and ``decode``
            writes one token behind them.
        context: positions that a decoder has read, or None for `source_length`.
        allocator: how the state of a decoder lies in memory, which nothing but its bytes depends
            on, see `search_spaces.costs.states`: ``live`` tensors, which None stands for, or
            ``paged``.
        runtime: how operations reach the device: ``eager``, one by one, which is kept as None;
            ``graph``, as one CUDA graph; or ``compile``, by torch's compiler.

    Raises:
        UsageError: on construction, for a size below 1, an unknown name, a beam without
            ``generate``, ``generate`` without a target length, or ``compile`` with it.
    """

    batch: int
    source_length: int
    target_length: int | None = None
    beam: int | None = None
    dtype: Dtype = "float32"
    mode: Mode = "forward"
    context: int | None = None
    allocator: Allocator | None = None
    runtime: Runtime | None = None

    def __post_init__(self) -> None:
        for key in _SIZES:
            _check_size(key, getattr(self, _FIELD_OF_KEY[key]), optional=key in _OPTIONAL)
        _check_name("dtype", self.dtype, DTYPES)
        _check_name("mode", self.mode, MODES)
        if self.allocator is not None:
            _check_name("allocator", self.allocator, ALLOCATORS)
        if self.runtime is not None:
            _check_name("runtime", self.runtime, RUNTIMES)
        if self.runtime == "eager":
            object.__setattr__(self, "runtime", None)
        if self.mode == "generate" and self.target_length is None:
            raise UsageError("a workload with mode=generate needs a length: add target=30")
        if self.beam is not None and self.mode != "generate":
            raise UsageError(f"beam={self.beam} needs mode=generate; given mode={self.mode}")
        if self.runtime == "compile" and self.mode == "generate":
            raise UsageError(
                "runtime=compile is for calls of one size, and every token of mode=generate is a "
                "call of another one; leave out runtime, or write runtime=graph on a graphics card"
            )

    @classmethod
    def parse(cls, text: str, defaults: Mapping[str, Any] | None = None) -> Self:
        """Read ``batch=1,source=30,target=30,beam=5``.

        Args:
            text: comma-separated ``key=value``; empty for the defaults as they are.
            defaults: values of the keys that the text leaves out, such as a space's
                ``[workload]`` table.

        Raises:
            UsageError: for text of another form, and as in `from_mapping`.
        """
        given: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, separator, value = (piece.strip() for piece in part.partition("="))
            if not separator or not value or key in given:
                problem = "is given twice" if key in given else "is not of the form key=value"
                raise UsageError(f"workload {text!r}: {part!r} {problem}; write {_EXAMPLE}")
            given[key] = _number(key, value) if key in _SIZES else value
        return cls.from_mapping(_merged(defaults or {}, given))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read batch, source, target, beam, dtype, mode, context, allocator and runtime.

        `batch` defaults to 1; a beam without a mode means ``generate``.

        Raises:
            UsageError: for an unknown or missing key, or a value that is not allowed.
        """
        for key in mapping:
            if key not in _FIELD_OF_KEY:
                near = difflib.get_close_matches(str(key), _FIELD_OF_KEY, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UsageError(
                    f"a workload has no key {key!r}; {hint}allowed are {', '.join(KEYS)}"
                )
        if mapping.get("source") is None:
            raise UsageError(f"a workload needs the source length in tokens, as in {_EXAMPLE}")
        values = {_FIELD_OF_KEY[key]: value for key, value in mapping.items()}
        values.setdefault("batch", 1)
        if values.get("beam") is not None:
            values.setdefault("mode", "generate")
        return cls(**values)

    @property
    def positions_read(self) -> int:
        """Positions that a decoder has read when it writes, at least 1."""
        return self.source_length if self.context is None else self.context

    def timed_as(self, mode: Mode | None) -> Self:
        """The part of the workload that a timing in that mode depends on.

        Args:
            mode: ``decode`` or ``prefill``, whose only length is that of the context; None for the
                workload's own mode.
        """
        mode = mode or self.mode
        if mode not in BEHIND_CONTEXT:
            return replace(self, context=None, allocator=None)
        return replace(
            self,
            source_length=self.positions_read,
            target_length=None,
            beam=None,
            mode=mode,
            context=None,
            allocator=None,
        )

    @property
    def label(self) -> str:
        """Text for people: ``batch 1, source 30, target 30, beam 5, float32, generate``.

        A runtime other than ``eager`` comes last.
        """
        sizes = [f"{key} {value}" for key, value in self.to_json().items() if key in _SIZES]
        names = [self.dtype, self.mode, self.runtime]
        return ", ".join([*sizes, *(name for name in names if name is not None)])

    @property
    def option(self) -> str:
        """Text that `parse` reads: ``batch=1,source=30,dtype=float32,mode=forward``."""
        return ",".join(f"{key}={value}" for key, value in self.to_json().items())

    @property
    def digest(self) -> str:
        """sha256 of the sorted JSON."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The mapping `from_json` reads; lengths that are not there are left out."""
        values = {key: getattr(self, name) for key, name in _FIELD_OF_KEY.items()}
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read what `to_json` wrote.

        Raises:
            UsageError: when it is not an object, and as in `from_mapping`.
        """
        if not isinstance(data, Mapping):
            raise UsageError(f"a workload is a JSON object, not {type(data).__name__}")
        return cls.from_mapping(data)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **given}
    # Asking for another mode drops the default beam, which has no meaning there.
    if given.get("mode", "generate") != "generate" and "beam" not in given:
        merged.pop("beam", None)
    return merged


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"workload: {key} must be a positive integer; given {text!r}")
    return int(text[:20])


def _check_size(key: str, value: object, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST_SIZE:
        raise UsageError(
            f"workload: {key} must be an integer from 1 to {_LARGEST_SIZE}; given {value!r}"
        )


def _check_name(key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"workload: {key} must be one of {', '.join(allowed)}; given {value!r}")

"""Logs a run to TensorBoard: ``tensorboard --logdir RUN/tensorboard``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nas.console.listeners.base import Logger, Outcome
from nas.console.listeners.results import request
from nas.run.folder import RunFolder
from nas.run.layout import TENSORBOARD_FOLDER


class TensorBoardLogger(Logger):
    """Writes event files into the run folder.

    TensorBoard's own writer rather than torch's, because listeners know nothing of torch.
    """

    def __init__(self, folder: RunFolder) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder.path / TENSORBOARD_FOLDER))
        lines = [f"- {name}: {value}" for name, value in request(folder.spec).items()]
        self.text("request", "\n".join(lines))

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to the curve of each name."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for name, value in values.items():
            self._add(scalar_pb(name, value), step)
        self._writer.flush()

    def text(self, name: str, markdown: str) -> None:
        """Add a text."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(text_pb(name, markdown), 0)
        self._writer.flush()

    def file(self, folder: Path, name: str) -> None:
        """Nothing: TensorBoard shows no files, and the folder above its own holds them."""

    def close(self, outcome: Outcome) -> None:
        """Write what is left; event files do not say how a run ended."""
        self._writer.close()

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

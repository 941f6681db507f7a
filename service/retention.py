"""Keeps the runs within the disk quota.

Above the quota these are deleted, oldest first, until the rest fits:

1. run folders of failed and cancelled searches (a retry starts them from the beginning);
2. the trained supernets of finished searches, which only `nas resume` would read again.

Never: what a job that waits or runs needs, and fronts, reports, retrained networks and events of
finished searches. While these alone are above the quota, new jobs are refused.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from service.settings import Settings
from service.store import Store
from service.store.retention import NOTHING, RESULTS

ORPHAN_S = 3600.0  # a folder that belongs to no run may be one that is being made

log = logging.getLogger("service.retention")


def disk_bytes(folder: Path) -> int:
    """Bytes that the files below a folder take."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # a temporary file may be gone by now
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def make_room(store: Store, settings: Settings) -> None:
    """Delete what may be deleted while the runs are above the quota, and what was left behind."""
    _sweep(store, settings)
    for level in (NOTHING, RESULTS):
        for run in store.retention.candidates(level):
            if store.retention.total() <= settings.quota_bytes:
                return
            _shrink(store, settings, run, level)


def discard(settings: Settings, path: Path) -> None:
    """Delete a folder: first out of the way, in one step, then file by file."""
    shutil.rmtree(_put_aside(settings, path), ignore_errors=True)


def _put_aside(settings: Settings, path: Path) -> Path:
    trash = settings.home / "trash"
    trash.mkdir(parents=True, exist_ok=True)
    target = trash / f"{path.name}-{secrets.token_hex(4)}"
    with suppress(FileNotFoundError):
        path.rename(target)
    return target


def _shrink(store: Store, settings: Settings, run: str, level: str) -> None:
    folder = settings.runs / run
    with store.retention.shrinking(run, level) as allowed:
        if not allowed:
            return
        aside = _put_aside(settings, folder if level == NOTHING else folder / "supernet")
    shutil.rmtree(aside, ignore_errors=True)
    store.retention.note(run, disk_bytes(folder))
    log.info("made room", extra={"run": run, "kept": level})


def _sweep(store: Store, settings: Settings) -> None:
    """Delete what a process that was killed while deleting has left."""
    shutil.rmtree(settings.home / "trash", ignore_errors=True)
    if not settings.runs.is_dir():
        return
    found = {path.name: path for path in settings.runs.iterdir() if path.is_dir()}
    for name in found.keys() - store.retention.known(found):
        if time.time() - found[name].stat().st_mtime > ORPHAN_S:
            discard(settings, found[name])

"""A service's home folder, with nothing private in it that others on the machine can read."""

from __future__ import annotations

import logging
from pathlib import Path

from service.settings import Settings

PRIVATE = ("runs", "logs", "cache", "trash")
SHARED = ("data", "spaces")  # people put things there, and read what others put there
OTHERS = 0o077

log = logging.getLogger("service.homes")


def make_home(settings: Settings) -> None:
    """Make the home folder and what is in it; a new one is its owner's alone.

    A home that was there keeps its mode, since it may hold what others share. What is private in
    it is closed to others; the database closes its own files.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (*PRIVATE, *SHARED):
        (settings.home / name).mkdir(mode=0o700, exist_ok=True)
    for name in PRIVATE:
        _close(settings.home / name)


def _close(path: Path) -> None:
    mode = path.stat().st_mode
    if not mode & OTHERS:
        return
    try:
        path.chmod(mode & ~OTHERS)
        log.warning("was open to others on this machine and is closed now", extra={"path": path})
    except PermissionError:
        log.warning("is open to others on this machine; chmod go= it", extra={"path": path})

"""Keeps the runs within the disk quotas, and deletes what jobs have left.

Above a quota these are deleted, oldest first, until the rest fits:

1. run folders of failed and cancelled searches (a retry starts them from the beginning);
2. the trained supernets of finished searches, which `nas resume`, exports of inherited
   weights, and trainings of networks that inherit from a checkpoint would read again.

Never: what a job that waits or runs needs, and fronts, reports, retrained networks and events of
finished searches. While these alone are above the quota, new jobs are refused.

A run folder is moved only by who holds its lock. One whose lock is held, by a process that was
frozen or is about to end, is left for later.

A folder of which the database knows nothing is deleted only where it says itself that its job was
deleted: the database may be another one, or an older copy.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nas.run.folder import locked
from nas.run.layout import LOCK_FILE
from search_spaces.errors import RunConflictError
from service.jobs.database import DatabaseFullError
from service.jobs.states import NOTHING, RESULTS, Job, Kind
from service.jobs.store import Store
from service.settings import Settings
from service.uploads import DATA_IDLE_S, DATA_LONGEST_S, drop_unfinished

ORPHAN_S = 3600.0  # whoever deletes a run may still be about to move its folder
DELETED_FILE = ".deleted"  # in a run folder: somebody has deleted its job
NAMED = 5  # folders that are named of those that belong to no job

log = logging.getLogger("service.jobs.retention")


def disk_bytes(folder: Path) -> int:
    """Bytes that the files below a folder take."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # a temporary file may be gone by now
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def make_room(store: Store, settings: Settings) -> None:
    """Delete what may be deleted while runs are above a quota, and what was left behind."""
    _sweep(store, settings)
    store.outbox.tidy()
    store.database.reserve.keep()
    _shrink_to(store, settings, settings.quota_bytes)
    if settings.owner_quota_bytes is not None:
        for owner in store.retention.owners():
            _shrink_to(store, settings, settings.owner_quota_bytes, owner)


def delete_job(store: Store, settings: Settings, identity: str) -> Job | None:
    """Delete an ended job, its log and, with a search, its files and all jobs on its run.

    Where the disk is so full that the database cannot even forget the job, its files go first.

    Returns:
        The job as it was, or None when there is none.

    Raises:
        JobStateError: when it, or another job on its run, has not ended.
        DatabaseFullError: when that is not enough.
    """
    job = store.jobs.get(identity)
    if job is None:
        return None
    ids = store.jobs.on_run(job.run) if job.kind is Kind.search else [job.id]
    mark = settings.runs / job.run / DELETED_FILE
    if job.kind is Kind.search:
        store.jobs.check_deletable(identity)
        with suppress(OSError):  # no folder, or a full disk
            mark.touch()  # before the job goes, should this process be killed in between
    try:
        deleted = _forget(store, settings, job, ids)
    except Exception:  # such as one that was retried meanwhile
        mark.unlink(missing_ok=True)
        raise
    if deleted is not None:
        _remove_files(settings, deleted, ids)
    return deleted


def _forget(store: Store, settings: Settings, job: Job, ids: Sequence[str]) -> Job | None:
    try:
        return store.jobs.delete(job.id)
    except DatabaseFullError:
        store.jobs.check_deletable(job.id)
        _remove_files(settings, job, ids)
        return store.jobs.delete(job.id)


def _remove_files(settings: Settings, job: Job, ids: Sequence[str]) -> None:
    if job.kind is Kind.search:
        discard(settings, settings.runs / job.run)
    for one in ids:
        (settings.logs / f"{one}.log").unlink(missing_ok=True)


def discard(settings: Settings, path: Path) -> None:
    """Delete a run folder that belongs to no job any more; one that is held, at a later sweep."""
    if not path.is_dir():
        return
    try:
        with locked(path):
            aside = _put_aside(settings, path)
    except RunConflictError:
        log.warning("a run that was deleted is still held; it is kept", extra={"run": path.name})
        return
    shutil.rmtree(aside, ignore_errors=True)


def _put_aside(settings: Settings, path: Path) -> Path:
    """Move a folder out of the way in one step; its files are deleted there one by one."""
    target = settings.trash / f"{path.name}-{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.rename(target)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("a folder could not be moved", extra={"run": path.name, "error": str(error)})
        shutil.rmtree(path)  # the disk may be too full for its new name
    return target


def _shrink_to(
    store: Store, settings: Settings, quota_bytes: int, owner: str | None = None
) -> None:
    for level in (NOTHING, RESULTS):
        if store.retention.total(owner) <= quota_bytes:
            return
        for run, kept in store.retention.candidates(level, owner):
            _shrink(store, settings, run, kept, level)
            if store.retention.total(owner) <= quota_bytes:
                return


def _shrink(store: Store, settings: Settings, run: str, kept: str, level: str) -> None:
    folder = settings.runs / run
    unneeded = folder if level == NOTHING else folder / "supernet"
    if level == RESULTS == kept and not unneeded.is_dir():
        return
    try:
        with locked(folder):
            if not store.retention.shrink(run, level):
                return
            aside = _put_aside(settings, unneeded)
    except RunConflictError:
        log.info("a run is still held; it is kept for now", extra={"run": run})
        return
    shutil.rmtree(aside, ignore_errors=True)
    store.retention.note(run, disk_bytes(folder))
    log.info("made room", extra={"run": run, "kept": level})


def _sweep(store: Store, settings: Settings) -> None:
    """Delete what a process that was killed while deleting has left; others may do so as well."""
    if settings.trash.is_dir():
        for path in settings.trash.iterdir():
            shutil.rmtree(path, ignore_errors=True)
    drop_unfinished(settings.uploads)
    drop_unfinished(settings.uploaded_data, idle_s=DATA_IDLE_S, longest_s=DATA_LONGEST_S)
    for path in _unknown(store, settings):
        with suppress(FileNotFoundError):
            if _was_deleted(path) and time.time() - path.stat().st_mtime > ORPHAN_S:
                discard(settings, path)


def _unknown(store: Store, settings: Settings) -> list[Path]:
    """The run folders of which the database knows nothing, by name."""
    if not settings.runs.is_dir():
        return []
    found = {path.name: path for path in settings.runs.iterdir() if path.is_dir()}
    return [found[name] for name in sorted(found.keys() - store.retention.known(found))]


def _was_deleted(path: Path) -> bool:
    """Whether a run folder says so, or holds nothing but what who came too late has left.

    Raises:
        FileNotFoundError: when it is gone.
    """
    names = {*os.listdir(path)}
    return DELETED_FILE in names or names <= {LOCK_FILE}


def tell_unknown(store: Store, settings: Settings) -> None:
    """Log which run folders belong to no job, and are kept: the database may be another one."""
    kept = []
    for path in _unknown(store, settings):
        with suppress(FileNotFoundError):
            if not _was_deleted(path):
                kept.append(path.name)
    if kept:
        log.warning(
            "run folders belong to no job of this database and are kept: see that NAS_DATABASE_URL "
            "names the database of this home, or move them away",
            extra={"runs": len(kept), "first": kept[:NAMED], "folder": settings.runs},
        )

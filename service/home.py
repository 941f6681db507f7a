"""Opens the home of a service, which is where its jobs say it is.

Specs of runs name data and checkpoints by paths below the home, so these paths have to stay. The
home itself keeps, in `HOME_FILE`, the path that they begin with; whichever way leads to it, that
one is used.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path

from search_spaces.errors import UsageError
from search_spaces.files import write_atomically
from service.jobs.migrate import upgrade
from service.jobs.store import Store, open_store
from service.settings import PREFIX, Settings, make_home
from service.uploads import read_facts

HOME_FILE = "home.json"


def open_home(settings: Settings) -> tuple[Settings, Store]:
    """Make the folders of a home and the tables of its database.

    Returns:
        The settings, with the home's path as its jobs name it, and the store.

    Raises:
        UsageError: when a file is in the way of a folder, or the home was moved away from the path
            that its jobs name.
        NasError: when the database cannot be used.
    """
    make_home(settings)
    store = open_store(settings.url, settings.database_timeout_s)
    upgrade(store.database)
    return settings.model_copy(update={"home": _named(settings, store)}), store


def _named(settings: Settings, store: Store) -> Path:
    home, file = settings.home, settings.home / HOME_FILE
    written = read_facts(file).get("path")
    if isinstance(written, str):
        with suppress(OSError):
            if Path(written).samefile(home):
                return Path(written)
    if _has_jobs(settings, store):
        if isinstance(written, str):
            raise _moved(home, written)
        home = home.resolve()  # which older versions followed to its end
    write_atomically(file, json.dumps({"path": str(home)}) + "\n")
    return home


def _has_jobs(settings: Settings, store: Store) -> bool:
    return any(store.jobs.counts().values()) or any(settings.runs.iterdir())


def _moved(home: Path, written: str) -> UsageError:
    source, target = shlex.quote(str(home)), shlex.quote(written)
    return UsageError(
        f"the home {home} was at {written}, and its jobs name their files there: put it back, or "
        f"mount it there or link it (ln -s {source} {target}) and set {PREFIX}HOME={target}"
    )

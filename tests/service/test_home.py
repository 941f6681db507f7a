"""A home is where its jobs say it is: kept, linked, moved, restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nas.request.spec import Start
from search_spaces.errors import UsageError
from service.api.catalog import Catalog
from service.auth import Role, Token
from service.data_uploads import DataUploads
from service.home import HOME_FILE, open_home
from service.jobs.store import Store
from service.settings import Settings, places_of, read_settings, without_home
from service.uploads import FACTS_FILE
from supernet.data.manifest import FILE_NAME
from tests.nas.stages.test_prepared_search import prepare_images
from tests.support.service_cases import submission

ALICE = Token("0" * 8, "alice", Role.submitter, 0.0, None, None)


def opened(home: Path, *, jobs: int = 0, spec: str = "{}") -> tuple[Path, Store]:
    """The path by which the service uses a home, and its store, which is closed."""
    settings, store = open_home(read_settings({}, home=home))
    for _ in range(jobs):
        store.jobs.submit(submission(spec=spec))
    store.database.close()
    return settings.home, store


def test_a_home_is_used_by_the_path_that_it_was_given(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert opened(link, jobs=1)[0] == link
    assert opened(real)[0] == link  # which leads there as well
    assert json.loads((real / HOME_FILE).read_text()) == {"path": str(link)}


def test_a_home_that_was_moved_is_put_back_or_linked(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    opened(old, jobs=1)
    old.rename(new)
    with pytest.raises(UsageError) as told:
        opened(new)
    assert str(told.value) == (
        f"the home {new} was at {old}, and its jobs name their files there: put it back, or mount "
        f"it there or link it (ln -s {new} {old}) and set NAS_HOME={old}"
    )
    old.symlink_to(new)
    assert opened(old)[0] == opened(new)[0] == old


def test_a_home_that_is_restored_beside_the_old_one_is_not_taken_for_it(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    opened(old)
    opened(new)
    (new / HOME_FILE).write_text((old / HOME_FILE).read_text())
    (new / "runs" / "some").mkdir()  # whatever the database knows
    with pytest.raises(UsageError, match="was at"):
        opened(new)


def test_a_home_without_jobs_may_be_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    opened(old)
    old.rename(new)
    assert opened(new, jobs=1)[0] == new
    assert json.loads((new / HOME_FILE).read_text()) == {"path": str(new)}


def test_a_home_of_an_older_version_is_used_by_the_path_behind_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    opened(real, jobs=1)
    (real / HOME_FILE).unlink()
    link.symlink_to(real)
    assert opened(link)[0] == opened(real)[0] == real


@pytest.mark.parametrize("behind", [False, True])
def test_a_data_set_in_a_linked_home_is_kept_while_a_job_needs_it(
    tmp_path: Path, behind: bool
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    settings, store = open_home(read_settings({}, home=link))
    folder = settings.uploaded_data / "alice" / "pets"
    folder.parent.mkdir()
    prepare_images(tmp_path).rename(folder)
    (folder / FACTS_FILE).write_text('{"family": "pictures", "task": "classification", "bytes": 9}')
    assert (folder / FILE_NAME).is_file()
    place = Catalog(settings).seen_by(ALICE).dataset("pets")
    assert place == folder == link / "uploaded-data" / "alice" / "pets"
    written = folder.resolve() if behind else place  # as older versions wrote it
    job, _ = store.jobs.submit(submission(spec=json.dumps({"data": str(written)})))
    found = DataUploads(settings).find(ALICE, "pets")
    assert found is not None and store.jobs.needing(found.folder) == [job.id]
    assert store.jobs.needing(found.folder.with_name("pet")) == []
    store.database.close()


def test_a_checkpoint_is_named_by_the_homes_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas.request.resolve import StartingPoint
    from search_spaces import load_space

    real, link = tmp_path / "real", tmp_path / "link"
    (real / "checkpoints" / "second").mkdir(parents=True)
    (real / "checkpoints" / "latest").symlink_to(real / "checkpoints" / "second")
    link.symlink_to(real)

    def starting_point(folder: Path) -> StartingPoint:
        start = Start(folder=str(folder.resolve()), digest="0" * 64)
        return StartingPoint(start, load_space("digits"), lambda _: None)

    monkeypatch.setattr("nas.run.checkpoint.starting_point", starting_point)
    begun = Catalog(Settings(home=link)).start("latest")
    assert begun.start.folder == str(link / "checkpoints" / "second")


def test_neither_of_a_homes_paths_is_told(tmp_path: Path) -> None:
    real, link = tmp_path / "home", tmp_path / "home-of-all"
    real.mkdir()
    link.symlink_to(real)
    assert places_of(link) == [str(link), str(real)]
    assert without_home(f"{link}/a and {real}/b", link) == "HOME/a and HOME/b"


def test_every_setting_is_named_on_the_page_of_the_service() -> None:
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8")
    told = page.partition("## Settings\n")[2].partition("## ")[0]
    assert all(f"`{name}`" in told for name in Settings.model_fields)

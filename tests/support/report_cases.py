"""What the tests of the report share: finished runs, and what a page's charts and text say."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from nas.results.contents import RunContents
from nas.results.reader import read_contents
from nas.run.folder import RunFolder
from tests.support.run_fixture import finished_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("runs") / "digits-1").path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFolder:
    return RunFolder.open(shutil.copytree(finished, tmp_path / "digits-1"))


@pytest.fixture(scope="session")
def contents(finished: Path) -> RunContents:
    return read_contents(RunFolder.open(finished))


def charts(page: str) -> dict[str, Any]:
    """Name → plotly's data and layout."""
    found = re.findall(
        r'<script type="application/json" data-chart="chart-(.*?)">(.*?)</script>', page
    )
    return {name: json.loads(source) for name, source in found}


def trace(page: str, chart: str, name: str) -> dict[str, Any]:
    """The points of a chart that have that name."""
    return next(one for one in charts(page)[chart]["data"] if one.get("name") == name)


def words_of(page: str) -> str:
    """What a reader sees outside the charts, in one line."""
    plain = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", plain)).split())

"""Where hosts cannot be made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments import hosts


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_a_project_that_hosts_do_not_see_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "ROOT", Path("/tmp/project"))
    assert str(hosts.missing.__wrapped__()).startswith("/tmp/project is not to be seen on hosts")

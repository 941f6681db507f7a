"""`nas architectures import | export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from search_spaces import load_space
from search_spaces.hat import from_hat
from search_spaces.interchange import parse_architectures, write_architecture
from search_spaces.notation import from_text, to_text
from search_spaces.variation import largest
from tests.search_spaces.test_hat_format import TITAN
from tests.support.external_cases import GENES
from tests.support.trained_cases import begun, networks, with_front

HAT = from_hat(TITAN)
DIGITS = load_space("digits")
LARGEST = DIGITS.decode(largest(DIGITS))[0]


def nas(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["architectures", *arguments], input=stdin)


@pytest.mark.parametrize("form", ["json", "hat", "text"])
def test_every_form_is_imported_as_json(form: str, tmp_path: Path) -> None:
    file = tmp_path / "network"
    file.write_text(write_architecture(HAT, form), "utf-8")  # type: ignore[arg-type]
    for extra in ([], ["--format", form], ["--space", "wmt14-hat"]):
        done = nas("import", str(file), *extra)
        assert (done.exit_code, json.loads(done.stdout)) == (0, HAT.to_json())


def test_a_line_on_the_command_line_and_standard_input() -> None:
    assert json.loads(nas("import", to_text(HAT)).stdout) == HAT.to_json()
    assert json.loads(nas("import", "-", stdin=TITAN).stdout) == HAT.to_json()


def test_out_is_written_in_full_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "arch.json"
    assert nas("import", to_text(HAT), "--out", str(out)).exit_code == 0
    assert json.loads(out.read_text("utf-8")) == HAT.to_json()
    assert nas("import", "E8: s1/0", "--out", str(tmp_path / "no.json")).exit_code == 2
    assert nas("import", "E8: s1/8", "--out", str(tmp_path / "no" / "a")).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["arch.json"]


def test_a_network_is_exported_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "arch.json").write_text(json.dumps({"architecture": HAT.to_json()}), "utf-8")
    for form, read in (("hat", from_hat), ("text", from_text)):
        done = nas("export", str(tmp_path / "arch.json"), "--format", form)
        assert read(done.stdout) == HAT
    assert json.loads(nas("export", to_text(HAT), "--format", "json").stdout) == HAT.to_json()


def test_the_front_of_a_run_is_exported_as_lines(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    ids = with_front(run)
    done = nas("export", str(run.path), "--format", "text")
    assert [from_text(line).id for line in done.stdout.splitlines()] == ids
    one = nas("export", str(run.path), "--format", "json", "--arch", ids[1][:6])
    assert json.loads(one.stdout) == networks(run.spec.space, 2)[1].to_json()


def test_several_networks_are_a_json_list_that_is_read_back(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    ids = with_front(run)
    file = tmp_path / "front.json"
    assert nas("export", str(run.path), "--format", "json", "--out", str(file)).exit_code == 0
    assert [one.id for one in parse_architectures(file.read_text("utf-8"))] == ids
    again = nas("import", str(file))
    assert (again.exit_code, again.stdout) == (0, file.read_text("utf-8"))
    lines = nas("export", str(file), "--format", "text").stdout.splitlines()
    assert [from_text(line).id for line in lines] == ids
    assert "HAT's format holds one" in nas("export", str(file), "--format", "hat").stderr
    done = CliRunner().invoke(app, ["cost", "--space", "digits", "--arch", str(file)])
    assert done.exit_code == 2 and "a list of 3 architectures, where one" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "the list holds no architecture"), ("[{}, 3]", "network 1 of 2: "), ("[", "no JSON")],
)
def test_a_list_that_cannot_be_read(text: str, message: str) -> None:
    done = nas("import", "-", stdin=text)
    assert done.exit_code == 2 and f"standard input: {message}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "hat"], "HAT holds one network, and the front has 3; give one with --arch"),
        (["--format", "text", "--arch", "zzz"], "'zzz' is the id of no network of the front"),
        (["--format", "text", "--arch", ""], "'' is the id of no network of the front"),
        (["--format", "text", "--space", "digits"], "the space digits has encoder"),
    ],
)
def test_a_run_that_cannot_be_exported_so(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    run = begun(tmp_path / "run")
    with_front(run)
    done = nas("export", str(run.path), *arguments)
    assert (done.exit_code, done.stdout) == (2, "") and message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "nowhere.yml"], "nowhere.yml: there is no such file"),
        (["import", "."], "cannot be read"),
        (["import", "E8: x1/8"], "the line: 'x1/8' is no layer"),
        (["import", to_text(HAT), "--space", "digits"], "the space digits has encoder"),
        (["import", to_text(HAT), "--format", "json"], "the line: no JSON"),
        (["import", to_text(HAT), "--format", "xml"], "'xml' is not one of"),
        (["export", to_text(HAT), "--format", "text", "--arch", "a"], "--arch chooses a network"),
        (["export", to_text(LARGEST), "--format", "hat"], "HAT's format cannot say"),
        (["export", to_text(HAT), "--format", "hat", "--space", "multi30k"], "multi30k allows"),
    ],
)
def test_wrong_requests(arguments: list[str], message: str) -> None:
    done = nas(*arguments)
    assert (done.exit_code, done.stdout) == (2, "") and message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", [["import"], ["export", "--format", "text"]])
def test_a_space_of_genes_is_told_for_what_it_is(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GENES, "utf-8")
    done = nas(*command, to_text(HAT), "--space", str(file))
    assert done.exit_code == 2
    assert "a space of genes holds networks that only an evaluator knows" in done.stderr


def test_what_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "network").write_bytes(b"\xff\xfe\x00")
    done = nas("import", str(tmp_path / "network"))
    assert done.exit_code == 2 and "is not UTF-8" in done.stderr

"""`nas space list | show | check` and `nas cost`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.console.tables import gene_rows
from nas.report import words
from nas.request.presets import PRESETS
from nas.stages.base import size_text
from search_spaces import dump_space, load_space, space_names
from search_spaces.architecture import Architecture, EncoderLayer, EncoderStack
from search_spaces.costs import CONVENTIONS, cost
from search_spaces.counts import exponent, power_of_ten
from search_spaces.genes import parse_genes
from search_spaces.space import SearchSpace
from search_spaces.variation import largest
from tests.support.external_cases import GENES

DIGITS = load_space("digits")
NETWORK = DIGITS.decode(largest(DIGITS))[0]


def nas(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def counted(*arguments: str, stdin: str | None = None) -> Any:
    return json.loads(nas("cost", "--space", "digits", "--json", *arguments, stdin=stdin).stdout)


@pytest.fixture
def arch(tmp_path: Path) -> str:
    (tmp_path / "network.json").write_text(json.dumps(NETWORK.to_json()), "utf-8")
    return str(tmp_path / "network.json")


def test_list_names_every_shipped_space() -> None:
    rows = json.loads(nas("space", "list", "--json").stdout)
    assert [row["name"] for row in rows] == space_names()
    assert [row["size"] for row in rows] == [load_space(name).size for name in space_names()]
    assert all(name in nas("space", "list").stdout for name in space_names())


@pytest.mark.parametrize("name", space_names())
def test_show_prints_genes_size_and_ends(name: str) -> None:
    text = nas("space", "show", name).stdout
    space = load_space(name)
    assert f"{space.size:,} different networks" in text
    assert all(slot.gene_name in text for slot in space.slots)
    assert "smallest" in text
    assert "largest" in text
    assert all(preset in text for preset in PRESETS)


def test_show_as_json() -> None:
    data = json.loads(nas("space", "show", "digits", "--json").stdout)
    assert data["size"] == DIGITS.size
    end = data["largest"]
    assert Architecture.from_json(end["architecture"]) == NETWORK
    costs = cost(DIGITS.model, DIGITS.task, NETWORK)
    assert (end["params"], end["flops"]) == (costs.params, costs.flops)
    assert data["smallest"]["params"] < end["params"]
    assert data["presets"]["paper"]["supernet"]["epochs"] >= 1


def test_a_space_of_ones_own_works_like_a_name(tmp_path: Path) -> None:
    cut = DIGITS.restrict({"encoder.1.ffn_dim": [64], "encoder.num_layers": [1, 2]})
    (tmp_path / "mine.toml").write_text(dump_space(cut), "utf-8")
    data = json.loads(nas("space", "show", str(tmp_path / "mine.toml"), "--json").stdout)
    assert data["size"] == cut.size
    rows = {(gene, layers): choices for gene, layers, choices in gene_rows(cut)}
    assert rows["encoder.ffn_dim", "1"] == (64,)
    assert rows["encoder.ffn_dim", "0, 2-3"] == DIGITS.slot("encoder.0.ffn_dim").choices


def test_an_unknown_space_suggests_the_nearest() -> None:
    done = nas("space", "show", "digit")
    assert done.exit_code == 2
    assert "did you mean digits" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_check_accepts_every_shipped_space_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(dump_space(DIGITS), "utf-8")
    done = nas("space", "check", str(tmp_path / "mine.toml"))
    assert done.exit_code == 0
    assert f"{DIGITS.size:,}" in done.stdout
    assert json.loads(nas("space", "check", "digits", "--json").stdout)["ok"] is True
    for name in space_names():
        assert nas("space", "check", name).exit_code == 0


def test_check_names_file_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = dump_space(DIGITS).replace('"softmax"', '"softmaks"', 1)
    file.write_text(text, "utf-8")
    done = nas("space", "check", str(file))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert all(part in done.stderr for part in (str(file), ", line ", "attention", "softmaks"))
    done = nas("space", "check", str(file), "--json")
    assert done.exit_code == 2
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert "softmaks" in answer["error"]


def test_check_reads_the_presets_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    plain = dump_space(DIGITS).partition("[presets")[0]
    file.write_text(plain + "\n[presets.quick]\nobservations = 0\n", "utf-8")
    done = nas("space", "check", str(file))
    assert done.exit_code == 2
    assert "observations" in done.stderr


@pytest.mark.parametrize(
    ("table", "line", "told"),
    [
        (
            "quick.supernet]\nepochs = 'x'",
            2,
            "epochs: found 'x', allowed is a whole number from 1",
        ),
        ("quick.supernet]\nepocs = 3", 2, "(did you mean 'epochs'?), allowed are epochs, epoch_"),
        ("quick.retrain]\nschedule = ''", 2, "allowed is one of cosine, inverse_sqrt"),
        ("quick.retrain]\nlearning_rate = 0", 2, "found 0, allowed is a number above 0.0 to 10.0"),
        ("paper]\nthreads = -1", 2, "found -1, allowed is a whole number from 1 to 1,024"),
        (
            "paper]\nsupernet.epochs = true",
            *(2, "presets.paper.supernet.epochs: found true, allowed is a whole number from 1"),
        ),
        ("quick]\nverified = '5'", 2, "presets.quick.verified: found '5', allowed is a whole"),
        ("quick]\nrounds.prune = 1", 2, "presets.quick.rounds.prune: found 1, allowed is true or"),
        ("paper]\nsupernet = 7", 2, "presets.paper.supernet: found 7, allowed is a table of keys"),
        ("paper.rounds]\nprune = 'x'", 2, "allowed is true or false"),
        ("quik]", 1, "presets.quik: found 'quik' (did you mean 'quick'?), allowed are smoke"),
    ],
)
def test_check_names_what_is_allowed_in_a_preset(
    table: str, line: int, told: str, tmp_path: Path
) -> None:
    plain = dump_space(DIGITS).partition("[presets")[0]
    file = tmp_path / "mine.toml"
    file.write_text(f"{plain}[presets.{table}\n", "utf-8")
    done = nas("space", "check", str(file))
    where = f"{file}, line {plain.count(chr(10)) + line}, presets."
    assert done.exit_code == 2 and where in done.stderr and told in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "search --space",
        "search --list-settings --space",
        "profile --out p.json --space",
        "space show",
    ],
)
def test_commands_that_use_presets_say_as_much(command: str, tmp_path: Path) -> None:
    plain = dump_space(DIGITS).partition("[presets")[0]
    file = tmp_path / "mine.toml"
    file.write_text(f"{plain}[presets.paper]\nthreads = -1\n", "utf-8")
    done = nas(*command.split(), str(file))
    line = plain.count("\n") + 2
    assert done.exit_code == 2 and done.stdout == ""
    assert f"{file}, line {line}, presets.paper.threads: found -1, allowed" in done.stderr


def test_check_names_the_file_of_a_wrong_workload(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    plain = dump_space(DIGITS).partition("[workload]")[0]
    file.write_text(plain.partition("[presets")[0] + "[workload]\nsources = 3\n", "utf-8")
    done = nas("space", "check", str(file))
    assert done.exit_code == 2 and f"{file}, line " in done.stderr and "'sources'" in done.stderr


def test_a_file_without_the_ending_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rnd").write_text(dump_space(DIGITS), "utf-8")
    done = nas("space", "check", "rnd")
    assert done.exit_code == 2 and "its name has to end in .toml" in done.stderr
    assert nas("space", "check", "./rnd").exit_code == 0
    assert "no space named ''; shipped are" in nas("space", "check", "").stderr


@pytest.mark.parametrize("given", ["", " ", "banana"])
def test_cost_says_how_an_architecture_is_given(given: str) -> None:
    done = nas("cost", "--space", "digits", "--arch", given)
    assert done.exit_code == 2
    assert "a file, - for standard input, or a line such as 'E512: 6*s8/2048" in done.stderr


def test_a_token_behind_a_text_of_the_full_length_can_be_timed(tmp_path: Path) -> None:
    space, file = load_space("lm-small"), tmp_path / "mine.toml"
    for source, code in ((space.model.max_length, 0), (space.model.max_length + 1, 2)):
        timed = replace(space, workload={"source": source, "mode": "decode"})
        file.write_text(dump_space(timed), "utf-8")
        assert nas("space", "check", str(file)).exit_code == code


def test_check_reads_the_workload_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(dump_space(replace(DIGITS, workload={"source": 99999})), "utf-8")
    done = nas("space", "check", str(file))
    assert done.exit_code == 2
    assert "every image of the space digits has 16 patches" in done.stderr


def test_cost_equals_the_library(arch: str) -> None:
    for convention in CONVENTIONS:
        expected = cost(DIGITS.model, DIGITS.task, NETWORK, convention)
        found = counted("--arch", arch, "--convention", convention)
        assert (found["params"], found["flops"]) == (expected.params, expected.flops)
        assert found["id"] == NETWORK.id
    text = nas("cost", "--space", "digits", "--arch", arch).stdout
    assert f"{cost(DIGITS.model, DIGITS.task, NETWORK).flops:,}" in text


@pytest.mark.parametrize("name", ["digits", "multi30k", "python-source", "recall"])
def test_cost_counts_what_a_search_does(name: str, tmp_path: Path) -> None:
    space, file = load_space(name), tmp_path / "network.json"
    shown = json.loads(nas("space", "show", name, "--json").stdout)["largest"]
    file.write_text(json.dumps(shown), "utf-8")
    found = json.loads(nas("cost", "--space", name, "--arch", str(file), "--json").stdout)
    assert (found["params"], found["flops"]) == (shown["params"], shown["flops"])
    assert found["source_length"] == space.workload["source"]
    assert found["target_length"] == space.workload.get("target")


def test_cost_counts_at_the_lengths_that_are_given(tmp_path: Path) -> None:
    space, file = load_space("multi30k"), tmp_path / "network.json"
    file.write_text(json.dumps(space.decode(largest(space))[0].to_json()), "utf-8")
    command = ("cost", "--space", "multi30k", "--arch", str(file))
    given = ("--source-length", "5", "--target-length", "6")
    assert "Convention true, 5 input tokens, 6 target tokens" in nas(*command, *given).stdout
    assert "Convention true, 14 input tokens, 14 target tokens" in nas(*command).stdout
    tables = nas(*command, "--convention", "hat").stdout
    assert "Convention hat, 30 input tokens, 30 target tokens" in tables


def test_cost_reads_standard_input_and_results(tmp_path: Path) -> None:
    result = json.dumps({"id": "x", "architecture": NETWORK.to_json(), "test_accuracy": 1})
    assert counted("--arch", "-", stdin=result)["id"] == NETWORK.id


def test_cost_refuses_a_network_of_another_space(tmp_path: Path) -> None:
    other = Architecture(encoder=EncoderStack(7, (EncoderLayer("softmax", 1, 8),)))
    done = nas("cost", "--space", "digits", "--arch", "-", stdin=json.dumps(other.to_json()))
    assert done.exit_code == 2
    assert "encoder.embed_dim is 7" in done.stderr


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"encoder": 3}', "[" * 100_000])
def test_cost_refuses_what_is_no_architecture(text: str) -> None:
    done = nas("cost", "--space", "digits", "--arch", "-", stdin=text)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: standard input")
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--convention", "tru"], "did you mean 'true'"),
        (["--arch", "nowhere.json"], "nowhere.json: there is no such file"),
        (["--arch", "."], "cannot be read"),
        (["--space", "digit"], "did you mean digits"),
        (["--target-length", "4"], "target"),
        (["--source-length", "0"], "'--source-length'"),
    ],
)
def test_cost_refuses_wrong_options(arch: str, change: list[str], message: str) -> None:
    done = nas("cost", "--space", "digits", "--arch", arch, *change)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1"),
        (9_999, "9999"),
        (10_000, "1.0 × 10^4"),
        (25_162_920, "2.5 × 10^7"),
        (9_960_000, "1.0 × 10^7"),
        (9_940_000, "9.9 × 10^6"),
        (10**40, "1.0 × 10^40"),
    ],
)
def test_powers_of_ten(size: int, text: str) -> None:
    assert power_of_ten(size) == text


@pytest.mark.parametrize("power", [0, 1, 22, 23, 308, 309, 5000])
def test_the_power_of_ten_of_numbers_that_cannot_be_written(power: int) -> None:
    assert exponent(10**power) == power
    assert exponent(10 ** (power + 1) - 1) == power
    assert exponent(7 * 10**power) == power
    assert words.count(7 * 10 ** (power + 10)).startswith("7.0 × 10")


@pytest.mark.parametrize("power", [11, 12, 40, 400, 5000])
def test_a_stage_tells_the_size_of_any_space(power: int) -> None:
    space = SimpleNamespace(size=25 * 10 ** (power - 1))
    text = f"{space.size:,}" if power < 12 else f"2.5 × 10^{power}"
    assert size_text(cast(SearchSpace, space)) == text


def mine(folder: Path, old: str, new: str, name: str = "digits") -> str:
    """A shipped space, changed, as a file."""
    text = dump_space(load_space(name))
    assert old in text
    (folder / "mine.toml").write_text(text.replace(old, new, 1), "utf-8")
    return str(folder / "mine.toml")


OF_DIGITS = 'dataset = "digits"'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            OF_DIGITS,
            "mean = [0.5, 0.5]\nstd = [1, 1]",
            "data.mean: .* which are 1, std above",
        ),
        (OF_DIGITS, "mean = [0.5]\nstd = [0.0]", "data.mean: .* std above 0; given"),
        (OF_DIGITS, "std = [0.5]", "data.std: .* takes mean and std together"),
        (OF_DIGITS, 'dataset = "listops"', "data.dataset: the data set listops holds tokens"),
        (OF_DIGITS, 'dataset = "recall"', "data.dataset: the data set recall is for language"),
        ("num_classes = 10", "num_classes = 5", "data.dataset: the data set digits has 10 classes"),
        ("[workload]", "[workload]\nbeam = 4", "workload: the networks .* leave out beam"),
        ("[workload]", "[workload]\ncontext = 4", "workload: the networks .* leave out context"),
    ],
)
def test_check_refuses_what_a_search_would(tmp_path: Path, old: str, new: str, told: str) -> None:
    done = nas("space", "check", mine(tmp_path, old, new))
    assert done.exit_code == 2 and re.search(rf"mine.toml, line \d+, {told}", done.stderr)


def test_check_refuses_a_form_of_recall_that_cannot_be(tmp_path: Path) -> None:
    for old, new, told in (
        ("pairs = 8", "pairs = 40", "40 pairs need as many keys"),
        (
            "pairs = 8",
            "pairs = 8\nvocabulary = 9000",
            "set vocab_size of [model.input] to 9000 or more",
        ),
    ):
        done = nas("space", "check", mine(tmp_path, old, new, "recall"))
        assert done.exit_code == 2 and told in done.stderr
    assert nas("space", "check", "recall").stdout.count("\n") == 1


def test_check_tells_of_a_data_set_that_is_not_built_in(tmp_path: Path) -> None:
    done = nas("space", "check", mine(tmp_path, OF_DIGITS, 'dataset = "digts"'))
    assert done.exit_code == 0 and "is not built in (did you mean 'digits'?)" in done.stdout
    assert "not built in" not in nas("space", "check", "digits").stdout


def test_the_number_of_networks_may_be_one(tmp_path: Path) -> None:
    alone = DIGITS.restrict({slot.name: slot.choices[:1] for slot in DIGITS.slots})
    (tmp_path / "mine.toml").write_text(dump_space(alone), "utf-8")
    done = nas("space", "check", str(tmp_path / "mine.toml"))
    assert done.stdout.endswith(" 1 different network\n")


def test_spaces_of_genes_are_shown_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GENES, "utf-8")
    space = parse_genes(GENES, "mine.toml")
    checked, seen = nas("space", "check", str(file)), nas("space", "show", str(file))
    assert f"{space.name}, genes for an evaluator, {space.size:,} diff" in checked.stdout
    assert f"{space.size:,} different" in seen.stdout
    assert all(gene.name in seen.stdout for gene in space.genes)
    told = json.loads(nas("space", "show", str(file), "--json").stdout)
    assert (told["task"], told["size"]) == (None, space.size)
    assert [gene["gene"] for gene in told["genes"]] == [gene.name for gene in space.genes]
    file.write_text(GENES.replace("integer", "integr", 1), "utf-8")
    wrong = nas("space", "check", str(file))
    assert wrong.exit_code == 2 and "mine.toml, line" in wrong.stderr
    assert nas("space", "estimate", str(file)).exit_code == 2, "it is trained elsewhere"


def test_cost_says_of_a_space_of_genes_who_knows_its_networks(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GENES, "utf-8")
    done = nas("cost", "--space", str(file), "--arch", "-", stdin="{}")
    assert done.exit_code == 2 and "networks that only an evaluator knows" in done.stderr
    assert done.stderr == nas("space", "estimate", str(file)).stderr

"""The study of placements on a tiny checkpoint, cut short and gone on with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import placement_table
from experiments.shared_prefixes import shared_prefixes
from search_spaces.errors import UsageError
from tests.support.export_cases import hub_without_net
from tests.support.start_cases import write_llama
from tests.support.tokenizer_cases import byte_level, prepared_stream

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def llama(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(hub, tmp_path_factory.mktemp("checkpoints") / "llama")


def test_a_table_of_all_placements(
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepared_stream(tmp_path, byte_level(marked=True))
    monkeypatch.setattr(placement_table, "RESULTS", tmp_path)
    monkeypatch.setattr("experiments.harness.RESULTS", tmp_path)
    given = ["--checkpoint", str(llama), "--data", str(tmp_path / "data"), "--updates", "2"]
    given += ["--work", str(tmp_path / "work"), "--seeds", "2", "--name", "tiny", "--json"]
    given += ["--tuned", "2", "--tuned-updates", "1", "--contexts", "16", "24"]
    given += ["--halves", "2", "--half-updates", "1", "--recall-window", "2"]
    assert placement_table.STUDY.main(given) in (0, 1)
    whole = json.loads((tmp_path / "tiny.json").read_text())
    numbers = whole["tuned"]
    assert len(numbers["after"]) == 2 and numbers["tau"] in (-1.0, 1.0)
    assert [sum(one) for one in numbers["placements"]] == [1, 1]
    found = [json.loads(line) for line in (tmp_path / "tiny.jsonl").read_text().splitlines()]
    assert len(found) == 8 and "valid_recall_nats" in found[0]
    own, converted = found[0]["kv_cache_mb_24"], found[-1]["kv_cache_mb_24"]
    assert own == pytest.approx(1.5 * found[0]["kv_cache_mb_16"]) and converted != own
    assert {one["prefill_ms_16"] for one in found if sum(one["placement"]) == 1} == {
        whole["costs"][1]["prefill_ms"]
    }
    halves = whole["halves"]
    assert {(sum(one["placement"]), one["seed"]) for one in halves["rows"]} == {(1, 0), (1, 1)}
    assert {one["chosen_by"] for one in halves["rows"]} == {"search", "uniform"}
    assert {"loss", "recall_nats"} <= set(halves["own"])
    assert list(placement_table.show(whole))
    kept = np.load(tmp_path / "tiny.npz", allow_pickle=False)
    assert kept["placements"].shape == (8, 3) and np.isfinite(kept["qualities"]).all()
    journal = tmp_path / "work" / "softmax,linear" / placement_table.JOURNAL
    lines = journal.read_text().splitlines()
    assert len(lines) == 8
    journal.write_text("".join(f"{line}\n" for line in lines[:5]))
    assert placement_table.STUDY.main(given) in (0, 1)
    assert sorted(journal.read_text().splitlines()) == sorted(lines)
    again = ["--checkpoint", str(llama), "--name", "tiny", "--seeds", "2", "--again"]
    judged_by(again, tmp_path / "tiny.json", whole, capsys)


def judged_by(
    again: list[str], file: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that is known needs no texts, and one that is not is refused."""
    file.write_text(json.dumps({**whole, "chosen": {}, "search": []}))
    assert placement_table.STUDY.main(again) in (0, 1)
    assert json.loads(file.read_text()) == whole
    capsys.readouterr()
    assert placement_table.STUDY.main([*again, "--name", "none"]) == UsageError.exit_code
    assert "there is no table none" in capsys.readouterr().err
    assert placement_table.STUDY.main([*again, "--kinds", "linear,softmax"]) == UsageError.exit_code
    assert "tiny is of 3 layers with softmax,linear; given" in capsys.readouterr().err
    assert placement_table.STUDY.main(again[:-1]) == UsageError.exit_code
    assert "takes --data" in capsys.readouterr().err


def test_kinds_in_another_order_are_the_same_placements(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_stream(tmp_path, byte_level(marked=True))
    monkeypatch.setattr(placement_table, "RESULTS", tmp_path)
    monkeypatch.setattr("experiments.harness.RESULTS", tmp_path)
    found = []
    for kinds in (["softmax", "window:16", "linear"], ["softmax", "linear", "window:16"]):
        given = ["--checkpoint", str(llama), "--data", str(tmp_path / "data"), "--updates", "2"]
        given += ["--work", str(tmp_path / "work"), "--seeds", "1", "--kinds", ",".join(kinds)]
        assert placement_table.STUDY.main([*given, "--json"]) in (0, 1)
        lines = (tmp_path / "placement_table.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        found.append({tuple(kinds[n] for n in row["placement"]): row["quality"] for row in rows})
    assert len(found[0]) == 27 and found[1] == pytest.approx(found[0])


def test_a_training_in_bfloat16_is_another_one() -> None:
    words = ["--checkpoint", "DIR", "--data", "DIR"]
    parser = placement_table.STUDY.parser
    plain, short = (parser.parse_args([*words, *more]) for more in ([], ["--bfloat16"]))
    assert placement_table._learnt(plain, 9) == placement_table._learnt(parser.parse_args(words), 9)
    assert placement_table._learnt(plain, 9) != placement_table._learnt(short, 9)


def test_the_state_is_that_behind_the_longest_context() -> None:
    halves = {
        "own": {"loss": 2.0},
        "rows": [
            {"chosen_by": name, "placement": [1, 0], "test": {"loss": loss}}
            for name, loss in (("search", 2.01), ("uniform", 2.2))
        ],
    }
    costs = [
        {"placement": placement, "context": context, "kv_cache_mb": megabytes}
        for context, sizes in ((8192, (8.0, 4.0)), (1024, (1.0, 0.6)))
        for placement, megabytes in zip(([0, 0], [0, 1]), sizes, strict=True)
    ]
    marks = placement_table._half_marks({"halves": halves, "costs": costs})
    assert marks[placement_table.STATE_RATIO] == 0.5


def test_what_two_networks_share_is_computed_once() -> None:
    """Blocks say the same as ever, and those behind the first that differs say it anew."""
    torch.manual_seed(0)
    blocks = [Scaling() for _ in range(3)]
    batches = [torch.randn(2, 4), torch.randn(2, 4)]
    networks = list(itertools.product((1, 2), repeat=3))
    right = [[said(blocks, x, sizes) for x in batches] for sizes in networks]
    for block in blocks:
        block.calls = 0
    with shared_prefixes(blocks):
        found = [[said(blocks, x, sizes) for x in batches] for sizes in networks]
    assert torch.equal(torch.tensor(found), torch.tensor(right))
    assert [block.calls for block in blocks] == [4, 8, 16]
    assert said(blocks, batches[0], networks[0]) == right[0][0] and blocks[2].calls == 17


class Scaling(torch.nn.Module):
    """A block whose size is what it multiplies by."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor, size: int) -> torch.Tensor:
        self.calls += 1
        return x.sin() * size


def said(blocks: list[Scaling], x: torch.Tensor, sizes: tuple[int, ...]) -> float:
    for block, size in zip(blocks, sizes, strict=True):
        x = block(x, size)
    return x.sum().item()


def test_a_kind_that_is_not_offered(llama: Path) -> None:
    with pytest.raises(UsageError, match="offers softmax, linear"):
        placement_table.kinds_space(llama, ["softmax", "omni"])

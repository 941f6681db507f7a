"""Batches: every example once, an order from (seed, epoch), padding cut, images enlarged."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from search_spaces.errors import UsageError
from supernet.data.examples import Split, batches, enlarge, num_batches


def numbered(count: int = 23, image_size: int | None = None) -> Split:
    """Images whose pixels and labels are all the number of the example."""
    numbers = torch.arange(count)
    return Split(numbers.view(-1, 1, 1, 1).repeat(1, 1, 4, 4).float(), numbers, image_size)


def order(seed: int, epoch: int, batch_size: int = 5) -> list[int]:
    return torch.cat(
        [batch.labels for batch in batches(numbered(), batch_size, seed, epoch)]
    ).tolist()


def test_every_example_comes_once_with_its_label() -> None:
    sizes, seen = [], []
    for batch in batches(numbered(), 5, seed=0, epoch=0):
        sizes.append(len(batch))
        seen += batch.labels.tolist()
        assert torch.equal(batch.inputs[:, 0, 0, 0], batch.labels.float())
        assert batch.key_mask is None
    assert sizes == [5, 5, 5, 5, 3]
    assert sorted(seen) == list(range(23)) != seen


def test_order_comes_from_seed_and_epoch_alone() -> None:
    torch.manual_seed(5)
    first = order(3, 7)
    torch.manual_seed(6)
    assert order(3, 7) == first == order(3, 7, batch_size=23)
    others = [order(3, 8), order(4, 7), order(7, 3)]
    assert all(other != first for other in others)


def test_unshuffled_keeps_the_order() -> None:
    batch = next(batches(numbered(), 100, seed=0, epoch=0, shuffle=False))
    assert batch.labels.tolist() == list(range(23))


@pytest.mark.parametrize("count", [0, 1, 5, 6])
def test_number_of_batches(count: int) -> None:
    assert num_batches(numbered(count), 5) == len(list(batches(numbered(count), 5, 0, 0)))


@pytest.mark.parametrize(
    ("arguments", "name"), [((0, 0, 0), "batch_size"), ((1, -1, 0), "seed"), ((1, 0, -1), "epoch")]
)
def test_wrong_numbers_are_refused_at_the_call(arguments: tuple[int, int, int], name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least"):
        batches(numbered(), *arguments)


def tokens() -> Split:
    rows = [[3, 4, 0, 0, 0, 0], [5, 6, 7, 8, 0, 0], [9, 0, 0, 0, 0, 0], [2, 2, 2, 2, 2, 0]]
    return Split(torch.tensor(rows), torch.arange(4))


def test_tokens_are_cut_to_the_longest_and_masked() -> None:
    first, second = batches(tokens(), 2, 0, 0, shuffle=False)
    assert first.inputs.tolist() == [[3, 4, 0, 0], [5, 6, 7, 8]]
    assert second.inputs.shape == (2, 5)
    assert first.key_mask is not None and first.key_mask.dtype == torch.bool
    assert first.key_mask.tolist() == [[True, True, False, False], [True] * 4]


def test_padding_inside_a_row_is_kept_and_empty_rows_leave_a_column() -> None:
    split = Split(torch.tensor([[0, 3, 0, 4, 0], [0, 0, 0, 0, 0]]), torch.zeros(2).long())
    first, second = batches(split, 1, 0, 0, shuffle=False)
    assert first.inputs.tolist() == [[0, 3, 0, 4]]
    assert second.inputs.tolist() == [[0]]


def test_small_images_are_enlarged_batch_by_batch() -> None:
    split = numbered(image_size=8)
    batch = next(batches(split, 5, 0, 0))
    assert split.inputs.shape[2:] == (4, 4) and batch.inputs.shape == (5, 1, 8, 8)
    image = torch.arange(16.0).view(1, 1, 4, 4)
    plain = functional.interpolate(image, scale_factor=2, mode="bilinear")
    assert torch.equal(enlarge(image, 8), plain)
    assert enlarge(image, 4) is image and enlarge(image, None) is image


def test_transform_sees_the_small_images() -> None:
    shapes = []

    def note(inputs: Tensor) -> Tensor:
        shapes.append(inputs.shape)
        return inputs + 1

    batch = next(batches(numbered(image_size=8), 4, 0, 0, transform=note))
    assert shapes == [(4, 1, 4, 4)]
    assert torch.equal(batch.inputs[:, 0, 0, 0], batch.labels + 1.0)


def test_a_pass_leaves_the_split_as_it_was() -> None:
    split = numbered()
    next(batches(split, 23, 0, 0, shuffle=False)).inputs.zero_()
    assert torch.equal(split.inputs, numbered().inputs)


@pytest.mark.gpu
def test_order_is_the_same_on_cuda() -> None:
    there = next(batches(numbered().to("cuda"), 9, 1, 2))
    carried = next(batches(numbered(), 9, 1, 2, device="cuda"))
    assert there.labels.is_cuda and torch.equal(there.labels, carried.labels)
    assert carried.labels.tolist() == next(batches(numbered(), 9, 1, 2)).labels.tolist()

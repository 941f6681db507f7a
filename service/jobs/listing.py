"""Which jobs are listed, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from service.jobs.states import Kind, State


class Order(StrEnum):
    """What jobs are listed by; moments and numbers begin with the largest, texts with A."""

    created = "created"
    ended = "ended"
    work = "work"  # seconds of it
    hypervolume = "hypervolume"
    titled = "title"  # `title` is a method of texts
    owner = "owner"
    space = "space"
    state = "state"

    @property
    def ascends(self) -> bool:
        """Whether the smallest is the first."""
        return self in (Order.titled, Order.owner, Order.space, Order.state)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs to list, in which order; None and the empty tuple mean any.

    Attributes:
        owner: whose.
        states: in one of these states.
        kind: of that kind.
        space: of that space.
        run: of that run.
        text: part of title, tags, space, data set or id, whatever the case.
        before: only jobs that come after this one, for the next page.
        tags: with all of these.
        since: made on that day or later, in UTC.
        until: made on that day or before.
        order: what they are listed by; equal ones newest first.
        backwards: whether in the opposite order.
    """

    owner: str | None = None
    states: tuple[State, ...] = ()
    kind: Kind | None = None
    space: str | None = None
    run: str | None = None
    text: str | None = None
    before: str | None = None
    tags: tuple[str, ...] = ()
    since: date | None = None
    until: date | None = None
    order: Order = Order.created
    backwards: bool = False

    @property
    def ascends(self) -> bool:
        """Whether the smallest is the first."""
        return self.order.ascends is not self.backwards

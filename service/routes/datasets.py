"""The data sets of the server."""

from __future__ import annotations

from fastapi import APIRouter

from service.access import AnyRole, InContext
from service.schemas import DatasetOut

router = APIRouter(prefix="/datasets", tags=["datasets"])


@router.get("", response_model=list[DatasetOut])
def datasets(token: AnyRole, context: InContext) -> list[DatasetOut]:
    """The data sets that a search may name."""
    return [
        DatasetOut(
            name=one.name,
            kind=one.kind,
            task=one.task,
            examples=one.examples,
            usable=one.problem is None,
        )
        for one in context.catalog.datasets()
    ]

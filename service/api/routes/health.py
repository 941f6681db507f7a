"""Whether the service lives, is ready, and how it does."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from service.api.dependencies import AnyRole, Context, InContext
from service.api.problems import ProblemError

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """That the service answers."""

    status: Literal["ok"] = "ok"


class Ready(Health):
    """That it can take requests, and who works on them."""

    workers: int


# Both answer from the event loop: whatever keeps threads or the database busy, these go on.


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """Whether the process answers; asks nobody else."""
    return Health()


@router.get("/readyz", response_model=Ready)
async def readyz(context: InContext) -> Ready:
    """Whether requests can be taken; 503 while the database is away or the disk full."""
    found = await context.readiness.look()
    if found.problem is not None:
        raise ProblemError(503, found.problem, headers={"Retry-After": "5"})
    return Ready(workers=found.workers)


@router.get(
    "/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def metrics(token: AnyRole, context: InContext) -> Response:
    """Numbers for Prometheus."""
    _measure(context)
    return Response(context.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _measure(context: Context) -> None:
    """Read what is not counted as it happens."""
    numbers = context.metrics
    for state, count in context.store.jobs.counts().items():
        numbers.jobs.labels(state).set(count)
    numbers.workers.set(len(context.store.workers.alive(context.settings.stale_s)))
    numbers.disk.set(context.store.retention.total())

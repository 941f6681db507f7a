"""The API as an application: ``create_app(settings)``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import Depends, FastAPI

from nas import version
from service.api import problems
from service.api.bounds import RateLimit, Streams
from service.api.catalog import Catalog
from service.api.dependencies import Context, authenticate
from service.api.health import Metrics, Readiness
from service.api.middleware import HeadMiddleware, RequestMiddleware
from service.api.problems import RESPONSES, ProblemDocument
from service.api.routes import (
    catalog,
    data,
    feed,
    health,
    jobs,
    networks,
    results,
    uploads,
    webhook,
)
from service.api.space_reader import SpaceReader
from service.api.thread_pools import READING, ThreadPools
from service.dashboard import router as dashboard
from service.dashboard.pages import install as install_pages
from service.data_uploads import DataUploads
from service.jobs.store import Store, open_store
from service.settings import API_PREFIX, Settings
from service.uploads import Uploads
from service.webhooks import Deliverer

FILES_AT_ONCE = 2  # of checkpoints, that one owner may send


def create_app(settings: Settings, store: Store | None = None) -> FastAPI:
    """The application over a database whose tables are made.

    Args:
        settings: of the service.
        store: opened from the settings unless given.
    """
    store = store or open_store(settings.url, settings.database_timeout_s)
    metrics = Metrics()
    reader = SpaceReader(settings)
    app = FastAPI(
        title="nas-service",
        version=version(),
        description="Submit architecture searches and follow their Pareto fronts.",
        openapi_url=None,
        lifespan=_living(store, reader, Deliverer(store.outbox, private=settings.webhook_private)),
        redirect_slashes=False,
        dependencies=[Depends(problems.plain_query)],
    )
    app.state.context = Context(
        settings=settings,
        store=store,
        catalog=Catalog(settings),
        requests=RateLimit(settings.requests_per_minute),
        failures=RateLimit(settings.failed_logins_per_minute),
        streams=Streams(settings.streams_per_token),
        receiving=Streams(FILES_AT_ONCE),
        uploads=Uploads(settings),
        data=DataUploads(settings),
        thread_pools=ThreadPools(),
        spaces=reader,
        readiness=Readiness(store, settings),
        metrics=metrics,
    )
    for module in (jobs, networks, results, catalog, uploads, data, webhook, feed):
        app.include_router(module.router, prefix=API_PREFIX, responses=RESPONSES)
    app.include_router(health.router, responses=RESPONSES)
    app.include_router(dashboard, include_in_schema=False)
    _describe(app)
    problems.install(app)
    install_pages(app)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(RequestMiddleware, settings=settings, metrics=metrics)
    return app


def _describe(app: FastAPI) -> None:
    """Serve the description of the API to those who may use it."""

    @app.get(
        f"{API_PREFIX}/openapi.json", include_in_schema=False, dependencies=[Depends(authenticate)]
    )
    def openapi() -> dict[str, Any]:
        return app.openapi()

    plain = app.openapi

    def whole() -> dict[str, Any]:
        document = plain()
        schemas = document["components"]["schemas"]
        if "ProblemDocument" not in schemas:
            described = ProblemDocument.model_json_schema(
                ref_template="#/components/schemas/{model}"
            )
            schemas |= described.pop("$defs")
            schemas["ProblemDocument"] = described
        return document

    app.openapi = whole  # type: ignore[method-assign]


def _living(store: Store, reader: SpaceReader, deliverer: Deliverer) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = READING
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliverer.run)
            yield
            tasks.cancel_scope.cancel()
        reader.close()
        store.database.close()

    return lifespan

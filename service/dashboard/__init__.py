"""The pages of the service: jobs, one job, fronts side by side.

They are written on the server and can be read without JavaScript; charts, which are those of the
report, and uploads need it.
"""

from fastapi import APIRouter

from service.dashboard import (
    api_pages,
    checkpoints,
    comparison,
    data,
    job_list,
    job_page,
    pages,
    static,
    submission,
    webhook,
)

router = APIRouter()
for _module in (
    pages,
    static,
    job_list,
    comparison,
    submission,
    checkpoints,
    data,
    webhook,
    api_pages,
    job_page,
):
    router.include_router(_module.router)

__all__ = ["router"]

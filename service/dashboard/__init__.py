"""The pages of the service: jobs, one job, fronts side by side.

They are written on the server and can be read without JavaScript. Charts are those of the report.
"""

from fastapi import APIRouter

from service.dashboard import job_list, job_page, pages, static, submission

router = APIRouter()
for _module in (pages, static, job_list, submission, job_page):
    router.include_router(_module.router)

__all__ = ["router"]

"""The webhook of whoever asks: named, looked at, removed."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.dependencies import AnyRole, InContext, Submitter
from service.api.problems import ProblemError
from service.api.schemas import DeliveryOut, WebhookOut, WebhookRequest, WebhookSecretOut
from service.api.thread_pools import Route
from service.webhooks import check_url

SHOWN = 50

router = APIRouter(prefix="/webhook", tags=["webhook"], route_class=Route)


@router.get("", response_model=WebhookOut)
def show(token: AnyRole, context: InContext) -> WebhookOut:
    """Where you are told of jobs that end, and the last messages with their answers."""
    outbox = context.store.outbox
    webhook = outbox.get(token.name)
    if webhook is None:
        raise ProblemError(404, "you have no webhook; PUT /api/v1/webhook names one")
    last = [DeliveryOut.model_validate(one) for one in outbox.last(token.name, SHOWN)]
    return WebhookOut.model_validate(
        {"url": webhook.url, "created_at": webhook.created_at, "deliveries": last}
    )


@router.put("", response_model=WebhookSecretOut)
def name(given: WebhookRequest, token: Submitter, context: InContext) -> WebhookSecretOut:
    """Be told of each of your jobs that ends, by a POST there; a first message comes at once.

    Messages are signed as https://www.standardwebhooks.com says, with the secret of the answer.
    They are JSON with `type` (`job.succeeded`, `job.failed`, `job.cancelled`, `webhook.set`),
    `timestamp` and `data`. What is not answered with 2xx is sent again, up to seven times within a
    day.
    """
    url = check_url(given.url, private=context.settings.webhook_private)
    return WebhookSecretOut(url=url, secret=context.store.outbox.set(token.name, url))


@router.delete("", status_code=204)
def remove(token: Submitter, context: InContext) -> None:
    """Be told no more; what waits is not sent."""
    if not context.store.outbox.remove(token.name):
        raise ProblemError(404, "you have no webhook")

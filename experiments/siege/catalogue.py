"""All attacks, and the services that they are made on."""

from __future__ import annotations

from experiments.siege import bodies, connections, folders, locks, owners, texts, tokens, workers
from experiments.siege.attack import USUAL, Attack
from experiments.siege.ground import Camp

_USUAL = {
    "NAS_TRUSTED_PROXIES": tokens.PROXY,
    "NAS_QUEUED_PER_OWNER": "20",
    "NAS_DATABASE_MIB_PER_OWNER": "5",
    "NAS_STALE_S": "5",
    "NAS_HEARTBEAT_S": "0.5",
}

CAMPS: dict[str, Camp] = {
    USUAL: Camp(_USUAL, workers=3),
    # Idle workers ask for work all the time, so that one is mostly frozen while it asks.
    locks.POLLING: Camp({"NAS_POLL_S": "0.02"}),
    # The ordinary clients' files fit into the quota, those of one attacker's job do not.
    workers.TIGHT: Camp({**_USUAL, "NAS_QUOTA_GIB": "0.003"}, submits=False),
    folders.FULL: Camp({"NAS_STALE_S": "5"}, workers=1, submits=False, disk_mb=48),
}

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for module in (bodies, connections, tokens, texts, owners, folders, locks, workers)
    for attack in module.ATTACKS
}

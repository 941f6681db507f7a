"""A further process of the API, started by `nas serve`, which listens on the same port.

It reads its settings from stdin and ends when that pipe closes, so that none outlives its service.
"""

from __future__ import annotations

import sys
import threading

import uvicorn

from service.logs import log_to_stderr
from service.serving import listen, server_config, warm_up
from service.settings import Settings
from service.store import open_store


def main() -> None:
    """Answer requests until the process at the other end of stdin is gone."""
    log_to_stderr()
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    server = uvicorn.Server(
        server_config(settings, open_store(settings.url, settings.database_timeout_s))
    )

    def wait() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        server.should_exit = True

    threading.Thread(target=wait, daemon=True).start()
    threading.Thread(target=warm_up, daemon=True).start()
    server.run(sockets=[listen(settings.host, settings.port, shared=True)])


if __name__ == "__main__":
    main()

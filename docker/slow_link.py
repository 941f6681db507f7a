#!/usr/bin/env python3
"""Makes the link of a host slow and lossy while this lives; ``docker/hosts slow`` starts it.

    slow_link.py HOST BRIDGE DELAY_MS LOSS PID_FILE

Frames between the host's link and the bridge go by way of this process, which keeps those to the
host for DELAY_MS milliseconds and drops a share LOSS of them, as ``netem`` does in kernels that
have it. PID_FILE holds its number until the link is as it was. Frames may be larger than the link
takes and have no checksum yet; the header before each (PACKET_VNET_HDR) tells the kernel what is
left to do.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# linux/if_packet.h, which Python's `socket` does not name
SOL_PACKET, ADD_MEMBERSHIP, VNET_HEADER, IGNORE_OUTGOING = 263, 1, 15, 23
PROMISCUOUS = 1
ALL_FRAMES = 3
LARGEST_BYTES = 1 << 17


def ip(*words: str) -> None:
    """Have the tool ``ip`` do something."""
    subprocess.run(["ip", *words], check=True)


def tap(link: str) -> socket.socket:
    """All frames that arrive at one end of a link; what is sent there leaves by it."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(SOL_PACKET, VNET_HEADER, 1)
    end.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    member = struct.pack("iHH8s", socket.if_nametoindex(link), PROMISCUOUS, 0, b"")
    end.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, member)
    end.bind((link, ALL_FRAMES))
    end.setblocking(False)
    return end


def arrived(end: socket.socket) -> Iterator[bytes]:
    """The frames that have come; a link that is down says so once, and there are none."""
    with suppress(OSError):
        while True:
            yield end.recv(LARGEST_BYTES)


def send(end: socket.socket, frame: bytes) -> None:
    """Send a frame, which is lost where the link is down or its queue full, as on any link."""
    with suppress(OSError):
        end.send(frame)


def forward(host: socket.socket, others: socket.socket, delay_s: float, loss: float) -> None:
    """Carry frames for ever."""
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        select.select([host, others], [], [], left_s)
        now = time.monotonic()
        for frame in arrived(host):
            send(others, frame)
        for frame in arrived(others):
            if random.random() >= loss:
                waiting.append((now + delay_s, frame))
        while waiting and waiting[0][0] <= now:
            send(host, waiting.popleft()[1])


def main(name: str, bridge: str, delay_ms: str, loss: str, pid_file: str) -> None:
    """Take the link out of the bridge, stand between them, and put it back in the end."""
    near, far = f"{name}-near", f"{name}-far"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ip("link", "add", near, "type", "veth", "peer", "name", far)
    try:
        # This machine's own addresses are to be found beyond the bridge alone.
        Path(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore").write_text("8")
        ip("link", "set", name, "nomaster")
        ip("link", "set", near, "master", bridge, "up")
        ip("link", "set", far, "up")
        host, others = tap(name), tap(far)
        Path(pid_file).write_text(str(os.getpid()))
        print("ready", flush=True)
        forward(host, others, float(delay_ms) / 1000, float(loss))
    finally:
        ip("link", "del", near)
        ip("link", "set", name, "master", bridge)
        Path(pid_file).unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

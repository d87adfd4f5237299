"""The heartbeat: an address outside that is asked for after every check that saw everything, and rings when it is not.

As healthchecks.io has it (Pinging API): a GET is a sign of life, one of `/fail` below it says that the check is blind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from ops.alerts import web
from ops.alerts.address import Answered, NotSent, scrub, stored
from ops.errors import BadInput


def beat(addresses: Mapping[str, bool]) -> dict[str, str]:
    """Ask for all addresses at once, of a check that saw everything or did not; of each what went wrong, or nothing.

    A check waits for them no longer than for a sink that is silent.
    """
    said = dict.fromkeys(addresses, f"no answer within {web.TIMEOUT:g} s")

    def one(address: str, sees: bool) -> None:
        said[address] = _asked(address, sees)

    threads = [threading.Thread(target=one, args=each, daemon=True) for each in addresses.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + web.TIMEOUT
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(said)


def _asked(address: str, sees: bool) -> str:
    try:
        address = stored(address)
    except BadInput as error:
        return error.what
    from urllib.request import Request

    parts = urlsplit(address)
    url = address if sees else parts._replace(path=f"{parts.path.rstrip('/')}/fail").geturl()
    try:
        web.ask(Request(url, headers={"User-Agent": "m4ops"}))
    except Answered as error:
        return scrub(str(error), address) if sees else ""  # a service that knows no /fail misses a beat: that is enough
    except (NotSent, OSError, ValueError) as error:
        return scrub(web.reason(error), address)
    return ""

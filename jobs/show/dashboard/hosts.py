"""Which Host headers are answered: the guard against DNS rebinding.

A hostile web page can point a name of its own at 127.0.0.1 and so make a browser read this server as if it were the
page's own. The browser then sends that name as Host. So names are answered only if they are known here: `localhost`
and those given by `--allow-host`. An address is always answered, since nobody can rebind an address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection


def host_allowed(header: str | None, names: Collection[str] = ()) -> bool:
    """Whether a request with this Host header is answered; `names` are those allowed beside `localhost`."""
    if not header or len(header) > 255:
        return False
    name = _without_port(header.strip()).lower().rstrip(".")
    return is_address(name) or name == "localhost" or name in {known.lower() for known in names}


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine alone."""
    name = host.strip("[]").lower()
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0]

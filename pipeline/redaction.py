"""Secrets stay out of everything that is kept: the values of secret environment variables, and credentials in URLs.

Text that comes from an exception or from a library may quote either. What is written into storage, or shown in a page,
goes through `redact` first.
"""

from __future__ import annotations

import os
import re

HIDDEN = "[hidden]"
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_ID)?$", re.IGNORECASE)
_SHORTEST = 8
"""A shorter value is no secret, and replacing it everywhere would garble the text."""
_USERINFO = re.compile(r"(?<=://)[^/\s@'\"]+@")
_QUERY = re.compile(
    r"([?&][\w.-]*(?:key|token|secret|signature|password|credential|sig)[\w.-]*=)[^&\s'\"]+", re.IGNORECASE
)


def secrets_in_environment() -> list[str]:
    """Values of variables whose name ends as a secret's does, longest first."""
    values = {
        value
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST and not os.path.exists(value)
    }
    return sorted(values, key=len, reverse=True)


def redact(text: str) -> str:
    """`text` without any secret of this process's environment and without credentials in URLs."""
    for secret in secrets_in_environment():
        text = text.replace(secret, HIDDEN)
    return _QUERY.sub(rf"\g<1>{HIDDEN}", _USERINFO.sub(f"{HIDDEN}@", text))


def holds_credentials(url: str) -> bool:
    """Whether `url` carries credentials: a user before its host, or a key in its query."""
    return bool(_USERINFO.search(url) or _QUERY.search(url))

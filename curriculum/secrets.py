"""What looks like a credential. A recipe is kept in the run's record, in logs and in pages, so none may stand in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_ID)?$", re.IGNORECASE)
"""How the names of environment variables end that hold one."""
SHORTEST_SECRET = 8
"""A shorter value of such a variable is none, and looking for it everywhere would find it everywhere."""
_IN_URLS = (
    ("a user or password before the host of a URL", re.compile(r"://[^/\s@'\"]+@")),
    (
        "a key in the query of a URL",
        re.compile(
            r"[?&][\w.-]*(?:key|token|secret|signature|password|credential|sig)[\w.-]*=", re.IGNORECASE
        ),
    ),
)
_KNOWN_SHAPES = (
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{20,}")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})")),
    ("a GitLab token", re.compile(r"\bglpat-[\w-]{20,}")),
    ("a Slack token", re.compile(r"\bxox[abeprs]-[\w-]{10,}")),
    ("an API key", re.compile(r"\bsk-[\w-]{20,}")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a web token", re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+")),
    (
        "a webhook's address",
        re.compile(
            r"https?://(?:hooks\.slack\.com/\S|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/|[\w.-]*webhook\.office\.com/|"
            r"chat\.googleapis\.com/v1/spaces/|api\.telegram\.org/bot)",
            re.IGNORECASE,
        ),
    ),
    (
        "the value of a secret",
        re.compile(
            r"(?:AWS_SECRET_ACCESS_KEY|AWS_SESSION_TOKEN|HF_TOKEN|WANDB_API_KEY|SECRET_ACCESS_KEY|\bPASSWORD|\bAPI_?KEY)"
            r"\s*[=:]\s*[^\s$]",
            re.IGNORECASE,
        ),
    ),
    ("a bearer token", re.compile(r"\bBearer\s+[\w.~+/-]{16,}", re.IGNORECASE)),
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Name -> value of the variables that hold a secret."""
    return {name: value for name, value in environment.items() if secret_variable(name, environment)}


def credential_in(text: str, secrets: Mapping[str, str]) -> str | None:
    """What kind of credential `text` carries, in words; None when none is seen. `secrets`: `secrets_in` an environment."""
    for words, pattern in (*_IN_URLS, *_KNOWN_SHAPES):
        if pattern.search(text):
            return words
    for name, value in secrets.items():
        if value in text:
            return f"the value of the environment variable {name}"
    return None


def secret_variable(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the variable's name is that of a secret. A path to one, or too short a value, is none."""
    value = environment.get(name)
    if not SECRET_NAME.search(name):
        return False
    return value is None or (len(value) >= SHORTEST_SECRET and not _is_path(value))


def secret_address(url: str) -> bool:
    """Whether a webhook's URL may be what gives the right to use it: anything below the root of another machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return True
    return host not in _LOOPBACK and bool(parts.path.strip("/") or parts.query or parts.fragment)


def _is_path(value: str) -> bool:
    return value.startswith(("/", "./", "~")) and os.path.exists(os.path.expanduser(value))

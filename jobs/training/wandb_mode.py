"""Whether W&B is spoken to, written for later, or left alone: decided by what wandb itself would heed, and said in words.

No wandb here: a doctor asks too, and asking must not start anything.
"""

from __future__ import annotations

import configparser
import netrc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

DEFAULT_URL = "https://api.wandb.ai"
_MODES = {"online": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}


@dataclass(frozen=True, kw_only=True)
class WandbMode:
    """What happens to a run's metrics beside storage."""

    mode: str
    """online, offline or disabled."""
    why: str
    """In a few words, for people."""
    url: str
    """The server, when online."""


def wandb_mode(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> WandbMode:
    """WANDB_MODE as it was set, by the environment or `wandb offline`; else online where a key is found, as wandb looks for
    one: WANDB_API_KEY, then netrc. Raises nothing: an unreadable file holds nothing."""
    home = home or _home()
    settings = _settings(Path(environ.get("WANDB_CONFIG_DIR") or home / ".config/wandb") / "settings")
    url = environ.get("WANDB_BASE_URL") or settings.get("base_url") or DEFAULT_URL
    asked = (environ.get("WANDB_MODE") or settings.get("mode") or "").strip().lower()
    if asked in ("offline", "dryrun", "disabled"):
        return WandbMode(mode=_MODES[asked], why=f"WANDB_MODE is {asked}", url=url)
    if asked not in ("", "online"):
        return WandbMode(mode="offline", why=f"WANDB_MODE={asked!r} is none of {', '.join(_MODES)}", url=url)
    if environ.get("WANDB_API_KEY"):
        return WandbMode(mode="online", why="WANDB_API_KEY is set", url=url)
    host = urlparse(url).hostname or ""
    for path in _netrc_paths(environ, home):
        if _has_key(path, host):
            return WandbMode(mode="online", why=f"{path} has a key for {host}", url=url)
    return WandbMode(mode="offline", why=f"no key for {host} in WANDB_API_KEY or netrc", url=url)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a home
        return Path("/nonexistent")


def _netrc_paths(environ: Mapping[str, str], home: Path) -> list[Path]:
    named = environ.get("NETRC")
    return [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]


def _has_key(path: Path, host: str) -> bool:
    try:
        found = netrc.netrc(str(path)).authenticators(host)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return bool(found and found[2])


def _settings(path: Path) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
        return dict(parser["default"]) if parser.has_section("default") else {}
    except (OSError, configparser.Error, UnicodeDecodeError):
        return {}

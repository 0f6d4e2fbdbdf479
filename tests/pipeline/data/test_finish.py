"""A source that has more unreadable lines than tolerated is refused by the first group that settles it."""

from __future__ import annotations

import pytest

from curriculum.schema import DataSpec
from pipeline.data.counters import Counters
from pipeline.data.errors import SourceError
from pipeline.data.finish import check_tolerance
from pipeline.data.groups import Group
from pipeline.data.objects import PinnedFile
from pipeline.data.pins import Pin
from pipeline.data.tokenize_group import GroupReceipt
from pipeline.storage import Storage

FILES = tuple(PinnedFile(path=f"{n}.jsonl", size=1000, sha256="0" * 64) for n in range(51))
PIN = Pin(source="web", location="/somewhere", builtin=False, files=FILES, digest="1" * 64)
GROUPS = [Group(number=n, files=(file,)) for n, file in enumerate(FILES)]
STORAGE = Storage("memory://finish-test")


def receipt(group: int, read: int, **skipped: int) -> GroupReceipt:
    counters = Counters(documents_read=read, documents_written=read - sum(skipped.values()), skipped=skipped)
    quarantine = f"quarantine/g{group:05d}.jsonl" if skipped else None
    return GroupReceipt(
        group=group, digest="", tokenizer="", shards=(), heldout=(), counters=counters, quarantine=quarantine
    )


def check(*receipts: GroupReceipt, tolerance: float = 0.001) -> None:
    by_number = {receipt.group: receipt for receipt in receipts}
    check_tolerance(STORAGE, "steps/x", PIN, DataSpec(bad_line_tolerance=tolerance), GROUPS, by_number)


@pytest.mark.parametrize("reason", ["bad_json", "not_an_object", "line_too_long", "bad_text"])
def test_a_first_group_that_is_all_bad_ends_the_source(reason):
    with pytest.raises(
        SourceError,
        match=rf"100 of 100 lines are unreadable, over .*0\.001; see .*g00007.*{reason}, after 1 of 51",
    ):
        check(receipt(7, 100, **{reason: 100}))


def test_what_the_rest_may_still_make_good_goes_on():
    check(receipt(0, 100, bad_json=10))
    check(receipt(0, 100, empty=100))
    check(receipt(0, 100, bad_json=100), tolerance=1.0)
    check()


def test_bad_groups_add_up_until_the_rest_cannot_make_them_good():
    done = []
    with pytest.raises(SourceError, match="after 27 of 51 groups"):
        for number in range(51):
            done.append(receipt(number, 100, bad_text=1))
            check(*done, tolerance=0.001)

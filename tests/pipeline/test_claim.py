from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.claim import claim_number
from pipeline.storage import Storage


def test_of_all_who_ask_each_gets_a_number_of_its_own(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        numbers = pool.map(
            lambda who: claim_number(storage, lambda n: f"log/{n:06d}.json", {"who": who}), range(24)
        )
        assert sorted(numbers) == list(range(1, 25))
    assert claim_number(storage, lambda n: f"log/{n:06d}.json", {}, first=7) == 25
    assert claim_number(storage, lambda n: f"other/{n}.json", {}, first=0) == 0

"""Sources on the HF Hub, against a loopback server that speaks its listing and file calls (tests.hub_server)."""

from __future__ import annotations

import hashlib

import pytest
import zstandard

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.errors import SourceError
from pipeline.data.pins import look, make_pin, renew_pin
from pipeline.storage import Storage, StorageUnavailable
from tests.hub_server import COMMIT, Hub, serving

REPO = "allenai/dolma3_mix-test"


@pytest.fixture
def hub(monkeypatch, prose_texts, lines):
    server = Hub(REPO)
    for number in range(3):
        content = zstandard.compress(lines(*prose_texts[number * 200 : (number + 1) * 200]))
        server.files[f"data/common_crawl-{number}/shard_0.jsonl.zst"] = content
    server.files["README.md"] = b"# Dolma"
    with serving(server, monkeypatch):
        yield server


def test_a_hub_dataset_is_pinned_by_the_hashes_of_its_listing_without_a_download(hub, tmp_path):
    pin = make_pin(
        Storage(str(tmp_path)), "mix", SourceSpec(globs=("data/*-[01]/**",)), f"hf://datasets/{REPO}"
    )
    assert [file.path for file in pin.files] == [f"data/common_crawl-{n}/shard_0.jsonl.zst" for n in (0, 1)]
    for file in pin.files:
        assert (file.size, file.sha256) == (
            len(hub.files[file.path]),
            hashlib.sha256(hub.files[file.path]).hexdigest(),
        )
    assert hub.requests["file"] == 0


def test_the_pin_keeps_the_commit_that_the_branch_stood_for(hub, tmp_path):
    storage = Storage(str(tmp_path))
    pin = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    assert pin.location == f"hf://datasets/{REPO}@{COMMIT}"
    assert make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}") == pin
    inside = make_pin(storage, "one", SourceSpec(), f"hf://datasets/{REPO}@main/data/common_crawl-1")
    assert inside.location == f"hf://datasets/{REPO}@{COMMIT}/data/common_crawl-1"
    assert [file.path for file in inside.files] == ["shard_0.jsonl.zst"]


def test_a_hub_source_is_staged_like_the_same_files_on_disk(hub, tmp_path, stage, tokenizer):
    storage = Storage(str(tmp_path / "store"))
    for path, content in hub.files.items():
        storage.write_bytes(f"copy/{path}", content)
    remote = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    local = make_pin(Storage(str(tmp_path / "other")), "mix", SourceSpec(), str(tmp_path / "store/copy"))
    assert remote.digest == local.digest
    one = stage(storage, "steps/remote", remote, tokenizer, DataSpec())
    two = stage(storage, "steps/local", local, tokenizer, DataSpec())
    assert one.shards == two.shards and one.counters == two.counters


def test_throttling_is_waited_out(hub, tmp_path, stage, tokenizer):
    storage = Storage(str(tmp_path))
    pin = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    hub.faults = ["429", "429"]
    manifest = stage(storage, "steps/mix", pin, tokenizer, DataSpec(heldout_fraction=0.0))
    assert not hub.faults and manifest.counters.documents_written == 600


def test_a_body_shorter_than_the_listing_says_is_an_error_and_publishes_nothing(
    hub, tmp_path, stage, tokenizer
):
    storage = Storage(str(tmp_path))
    pin = make_pin(storage, "mix", SourceSpec(), f"hf://datasets/{REPO}")
    hub.faults = ["short"] * 50
    with pytest.raises(SourceError):
        stage(storage, "steps/mix", pin, tokenizer, DataSpec())
    assert not storage.keys("steps/mix/groups")


def test_a_dataset_that_is_not_there_is_named(hub, tmp_path):
    with pytest.raises(
        SourceError, match=r"runtime\.locations\.mix: 'hf://datasets/allenai/none' cannot be listed"
    ):
        make_pin(Storage(str(tmp_path)), "mix", SourceSpec(), "hf://datasets/allenai/none")


def test_a_hub_source_is_listed_again_and_what_changed_is_named(hub, tmp_path):
    storage, place = Storage(str(tmp_path)), f"hf://datasets/{REPO}"
    first = make_pin(storage, "mix", SourceSpec(), place)
    hub.files["data/common_crawl-9/shard_0.jsonl.zst"] = zstandard.compress(b'{"text": "later"}\n')
    del hub.files["data/common_crawl-0/shard_0.jsonl.zst"]
    with pytest.raises(
        SourceError, match=r"1 added \('data/common_crawl-9.*1 removed \('data/common_crawl-0"
    ):
        look(storage, "mix", SourceSpec(), place)
    second, before = renew_pin(storage, "mix", SourceSpec(), None)
    assert before == first.digest and look(storage, "mix", SourceSpec(), place).pin == second
    assert hub.requests["file"] == 0


def test_a_partial_upload_beside_the_shards_of_a_mix_is_left_out_and_told(hub, tmp_path):
    hub.files["data/common_crawl-0/shard_1.jsonl.zst338588528"] = b"\x28\xb5\x2f\xfd"
    seen = look(
        Storage(str(tmp_path)), "mix", SourceSpec(globs=("data/common_crawl-*/**",)), f"hf://datasets/{REPO}"
    )
    assert seen.files == 3 and [path for path, _ in seen.left_out] == [
        "data/common_crawl-0/shard_1.jsonl.zst338588528"
    ]


def test_a_hub_that_does_not_answer_is_no_fault_of_the_source(hub, tmp_path, monkeypatch):
    storage, place = Storage(str(tmp_path)), f"hf://datasets/{REPO}"
    assert make_pin(storage, "mix", SourceSpec(), place).files
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageUnavailable, match="does not answer"):
        look(storage, "mix", SourceSpec(), place)
    assert "cannot be listed now" in look(storage, "other", SourceSpec(), place).note

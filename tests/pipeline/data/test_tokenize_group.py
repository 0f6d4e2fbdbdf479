from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.builtin import stdlib_code
from pipeline.data.errors import ChangedSincePinned
from pipeline.data.groups import plan_groups
from pipeline.data.heldout_rule import is_held_out
from pipeline.data.pins import make_pin
from pipeline.data.shards import map_tokens, read_documents
from pipeline.data.tokenize_group import load_receipt
from pipeline.storage import Storage


def test_windows_and_tails_are_exactly_the_encoded_documents_each_closed_by_one_eos(
    stdlib_storage, code, tokenizer, small_data
):
    expected = [
        np.append(tokenizer.encode_batch([text])[0], np.uint32(tokenizer.eos_id))
        for text in (document["text"] for document in stdlib_code())
        if text.strip() and not is_held_out(text, small_data.heldout_fraction)
    ]
    streams = [
        map_tokens(stdlib_storage.local_path(f"{code.output}/{entry.key}"), entry) for entry in code.shards
    ]
    assert np.array_equal(np.concatenate(streams), np.concatenate(expected))
    length = 512
    windows = [s[i * length : (i + 1) * length] for s in streams for i in range(len(s) // length)]
    assert len(windows) == code.windows(length) and all(len(window) == length for window in windows)


def test_every_document_ends_in_one_eos_and_has_none_inside(stdlib_storage, code, tokenizer):
    for entry in code.shards[:3]:
        ids = read_documents(stdlib_storage, code.output, entry).column("input_ids")
        values, offsets = ids.values.to_numpy(), ids.offsets.to_numpy()
        assert np.array_equal(np.flatnonzero(values == tokenizer.eos_id), offsets[1:] - 1)


def test_shards_close_at_their_size_and_no_shard_crosses_a_group(code, small_data):
    groups = [entry.key.split("/")[1].split("-")[0] for entry in code.shards]
    for index, entry in enumerate(code.shards):
        last_of_group = index + 1 == len(groups) or groups[index + 1] != groups[index]
        assert last_of_group or entry.tokens >= small_data.shard_tokens


def test_groups_are_runs_of_the_pin_and_depend_on_nothing_else(code_pin, small_data):
    groups = plan_groups(code_pin, small_data)
    assert [file for group in groups for file in group.files] == list(code_pin.files)
    assert all(sum(file.weight for file in group.files) >= small_data.group_bytes for group in groups[:-1])
    assert len({group.digest for group in groups}) == len(groups) > 3
    assert len(plan_groups(code_pin, DataSpec())) == 1


def test_staging_again_from_scratch_gives_the_same_bytes(
    stdlib_storage, prose_pin, prose, tokenizer, small_data, stage
):
    again = stage(stdlib_storage, "steps/prose-again", prose_pin, tokenizer, small_data)
    assert again.shards == prose.shards and again.heldout == prose.heldout


def test_a_receipt_of_other_content_is_refused(stdlib_storage, prose_pin, prose, small_data):
    group = plan_groups(prose_pin, small_data)[0]
    with pytest.raises(ValueError, match="other content or another tokenizer"):
        load_receipt(stdlib_storage, prose.output, group, "another tokenizer")


def test_a_file_that_changes_size_between_pin_and_run_is_an_error(tmp_path, tokenizer, lines, stage):
    path = tmp_path / "corpus/a.jsonl"
    path.parent.mkdir()
    path.write_bytes(lines("one", "two"))
    storage = Storage(str(tmp_path / "store"))
    pin = make_pin(storage, "web", SourceSpec(), str(path.parent))
    path.write_bytes(lines("one", "two", "three"))
    with pytest.raises(ChangedSincePinned, match=r"a\.jsonl: 50 bytes now, 32 when it was pinned"):
        stage(storage, "steps/web", pin, tokenizer, DataSpec())
    path.write_bytes(lines("one", "TWO"))
    with pytest.raises(ChangedSincePinned, match="the content changed"):
        stage(storage, "steps/web", pin, tokenizer, DataSpec())
    path.unlink()
    with pytest.raises(ChangedSincePinned, match="no longer there"):
        stage(storage, "steps/web", pin, tokenizer, DataSpec())
    assert not storage.keys("steps/web/groups")


KILLED = """
import sys
from curriculum.schema import DataSpec, SourceSpec
from pipeline.data.groups import plan_groups
from pipeline.data.pins import load_pin
from pipeline.data.tokenize_group import tokenize_group
from pipeline.data.tokenizer import Tokenizer
from pipeline.storage import Storage

storage = Storage(sys.argv[1])
pin = load_pin(storage, "code", SourceSpec(builtin="stdlib-code"), None)
data = DataSpec(group_bytes=2 << 20, shard_tokens=1 << 16, heldout_fraction=0.02)
tokenize_group(
    storage=storage, output=sys.argv[2], root=pin.open_root(storage), source="code", group=plan_groups(pin, data)[0],
    special_tokens="text", data=data, tokenizer=Tokenizer(storage.read_bytes("steps/tokenizer/tokenizer.json")),
)
"""


def test_a_group_killed_in_the_middle_and_done_again_is_the_same_bytes(stdlib_storage, code_pin, tokenizer):
    shards = "steps/killed/shards"
    process = subprocess.Popen([sys.executable, "-c", KILLED, stdlib_storage.url, "steps/killed"])
    while not stdlib_storage.children(shards):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    left = stdlib_storage.children(shards)
    assert not stdlib_storage.exists("steps/killed/groups/g00000.json")

    for output in ("steps/killed", "steps/whole"):
        subprocess.run([sys.executable, "-c", KILLED, stdlib_storage.url, output], check=True)
    killed, whole = (
        {key.removeprefix(output): stdlib_storage.read_bytes(key) for key in stdlib_storage.keys(output)}
        for output in ("steps/killed", "steps/whole")
    )
    assert killed == whole and len([key for key in whole if key.startswith("/shards/")]) > len(left) > 0

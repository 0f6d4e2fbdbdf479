from __future__ import annotations

from pipeline.data.globs import select

PATHS = ["a.jsonl", "data/x/a.jsonl.zst", "data/x/b.jsonl.gz", "data/y/a.jsonl.zst", "README.md"]


def test_two_stars_match_any_depth_and_none():
    assert select(PATHS, ["**/*.jsonl"]) == ["a.jsonl"]
    assert select(PATHS, ["**/*.jsonl.zst"]) == ["data/x/a.jsonl.zst", "data/y/a.jsonl.zst"]
    assert select(PATHS, ["data/x/**"]) == ["data/x/a.jsonl.zst", "data/x/b.jsonl.gz"]


def test_one_star_stays_in_its_directory_and_dots_are_literal():
    assert select(PATHS, ["*"]) == ["README.md", "a.jsonl"]
    assert select(["ajsonl", "a.jsonl"], ["*.jsonl"]) == ["a.jsonl"]
    assert select(PATHS, ["data/[!y]/*.zst"]) == ["data/x/a.jsonl.zst"]


def test_a_glob_without_magic_matches_that_path_and_nothing_longer():
    """datatrove turns `trunc.jsonl.zst` into `*trunc.jsonl.zst`."""
    assert select(["multitrunc.jsonl.zst", "trunc.jsonl.zst"], ["trunc.jsonl.zst"]) == ["trunc.jsonl.zst"]


def test_a_file_that_two_globs_match_comes_once_and_order_is_by_name():
    assert select(["b.jsonl", "a.jsonl"], ["*.jsonl", "**/*.jsonl"]) == ["a.jsonl", "b.jsonl"]

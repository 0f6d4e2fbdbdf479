"""Text stays as written, and whatever cannot be read is one line with file, line, key and fix."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from curriculum.errors import RecipeError
from curriculum.interpolation import resolve
from curriculum.load import bundled_recipes, load_recipe, merged_yaml
from curriculum.recipe_text import Section, dump, parse

WORDS = [
    "2026_01_05",
    "12e45678",
    "007",
    "off",
    "1_000",
    "0x10",
    "2026-01-05",
    "null-ish",
    "1.5",
    "yes",
    "0o17",
    "1e3",
]


@pytest.mark.parametrize("word", WORDS)
def test_text_stays_as_written_as_key_and_as_value(tmp_path: Path, word: str) -> None:
    recipe = load_recipe(
        "demo", [f"recipe={word}", f"description={word}", f"sources.{word.replace('.', 'p')}={{}}"]
    )
    assert (recipe.recipe, recipe.description) == (word, word)
    path = tmp_path / "r.yaml"
    path.write_text(
        f"extends: demo\nrecipe: {word}\nsources.x: {{globs: [{word}]}}\nsources: null\n".replace(
            "sources: null\n", ""
        )
    )
    recipe = load_recipe(str(path))
    assert recipe.recipe == word and recipe.sources["x"].globs == (word,)


def test_a_source_may_be_called_by_a_date(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("extends: demo\nstages.stage2.mixture:\n  2026_01_05: 1\nsources.2026_01_05: {}\n")
    assert list(load_recipe(str(path)).stages["stage2"].mixture) == ["2026_01_05"]


@pytest.mark.parametrize("number", ["007", "0x10", "12:30", "2026-01-05", "off", "1__0", "1e", "'5'"])
def test_what_reads_differently_to_different_readers_is_no_number(number: str) -> None:
    with pytest.raises(RecipeError, match=r"stages\.stage1\.tokens: .* is not a whole number"):
        load_recipe("demo", [f"stage1.tokens={number}"])


@pytest.mark.parametrize("value", ["off", "007", "12:30", "1e5x", "0x1F"])
def test_a_setting_without_a_type_must_be_clear_or_quoted(value: str) -> None:
    clean = "sources.stdlib-code.clean={filters: [c4], settings: {c4: {min_num_sentences: VALUE}}}"
    if value == "1e5x":
        return
    with pytest.raises(RecipeError, match="quotes"):
        load_recipe("demo", [clean.replace("VALUE", value)])
    quoted = load_recipe("demo", [clean.replace("VALUE", f"'{value}'")]).sources["stdlib-code"].clean
    assert quoted is not None and quoted.settings["c4"]["min_num_sentences"] == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("extends: demo\nsuites:\n  - core\n", r"r\.yaml:2: suites: unknown key"),
        ("extends: demo\nstages: [1]\n", r"r\.yaml:2: stages: \[1\] is not a section of keys"),
        ("extends: 5\n", r"r\.yaml:1: extends: recipe '5': unknown"),
        ("extends: {a: b}\n", r"r\.yaml:1: extends: write the name of a recipe"),
        ("extends: demo\ndescription: [a\nrecipe: x\n", r"r\.yaml:3: not YAML \(.*; close every bracket"),
        (
            "extends: demo\nruntime:\n\tnum_workers: 1\n",
            r"r\.yaml:3: not YAML .*use blanks where there is a tab",
        ),
        (
            "extends: demo\nrecipe: a\nruntime: {}\nrecipe: b\n",
            r"r\.yaml:4: 'recipe' is given twice, first at .*r\.yaml:2",
        ),
        ("extends: demo\nstages: {stage1: {seed: 1, seed: 2}}\n", r"r\.yaml:2: 'seed' is given twice"),
        (
            "extends: demo\nstages: {stage1: {optimizer: {lr: .inf}}}\n",
            r"r\.yaml:2: stages\.stage1\.optimizer\.lr: inf",
        ),
        ("extends: demo\n---\nrecipe: b\n", r"r\.yaml:2: a second document"),
        ("extends: demo\ndescription: !!python/name:os.system x\n", r"r\.yaml:2: the tag"),
        ("extends: demo\n? [a, b]\n: 1\n", r"r\.yaml:2: a key is text"),
        ("extends: demo\ndescription: *nobody\n", r"r\.yaml:2: "),
        (
            "extends: demo\ndescription: ${nope.x}\n",
            r"r\.yaml:2: description: \$\{nope\.x\} refers to nothing",
        ),
        (
            "extends: demo\ndescription: ${oc.env:NCP_NOT_SET}\n",
            r"r\.yaml:2: description: .*NCP_NOT_SET is not set",
        ),
        (
            "extends: demo\ndescription: ${foo.bar:x}\n",
            r"r\.yaml:2: description: \$\{foo\.bar:x\} is unknown",
        ),
        ("extends: demo\ndescription: ${description}\n", r"r\.yaml:2: description: .* leads back to itself"),
        ("", r"holds no sections"),
        ("- a\n", r"holds no sections"),
        ("just text\n", r"holds no sections"),
        ("extends: demo\ndescription: a\x07b\n", r"r\.yaml:2: not YAML \(a control character"),
    ],
)
def test_a_bad_file_is_one_line_with_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(content)
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("extends: demo\ndescription: caf\xe9\n".encode("latin-1"), r"r\.yaml:2: byte 0xe9 is not UTF-8"),
        ("extends: demo\n".encode("utf-16"), r"r\.yaml:1: is UTF-16 text; save it as UTF-8"),
        ("extends: demo\n".encode("utf-16-le"), r"r\.yaml:1: holds a zero byte"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", r"r\.yaml:1: byte 0xff|zero byte"),
        (b"#" * (1024 * 1024 + 1), "is larger than"),
    ],
)
def test_a_file_that_is_no_utf8_text_names_the_byte_and_the_line(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(data)
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(path))


def test_a_byte_order_mark_of_utf8_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbfextends: demo\nrecipe: bom\n")
    assert load_recipe(str(path)).recipe == "bom"


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").mkdir()
    os.mkfifo(tmp_path / "f.yaml")
    (tmp_path / "l.yaml").symlink_to(tmp_path / "l.yaml")
    for name, message in (
        ("d.yaml", "is a directory"),
        ("f.yaml", "is not a regular file"),
        ("l.yaml", "cannot be read|no such file"),
        ("gone.yaml", "no such file"),
        (f"{'x' * 300}.yaml", "cannot be read"),
        ("a\0b.yaml", "cannot be read|no such file"),
    ):
        with pytest.raises(RecipeError, match=message) as caught:
            load_recipe(str(tmp_path / name))
        assert "\n" not in str(caught.value)
    with pytest.raises(RecipeError, match="is a directory"):
        load_recipe(str(tmp_path))


@pytest.mark.parametrize(
    "bomb",
    [
        "mixes:\n  m0: &m0 {a: 1}\n"
        + "".join(f"  m{i}: &m{i} [{', '.join([f'*m{i - 1}'] * 9)}]\n" for i in range(1, 12)),
        "mixes:\n  m0: {a: 1}\n"
        + "".join(f"  m{i}: {{x: '${{mixes.m{i - 1}}}', y: '${{mixes.m{i - 1}}}'}}\n" for i in range(1, 40)),
        "description: ${mixes.t39}\nmixes:\n  t0: aaaaaaaaaa\n"
        + "".join(f"  t{i}: '${{mixes.t{i - 1}}}${{mixes.t{i - 1}}}'\n" for i in range(1, 40)),
        "description: " + "[" * 5000 + "]" * 5000 + "\n",
    ],
    ids=["anchors", "sections", "text", "depth"],
)
def test_what_blows_up_is_refused_at_once(tmp_path: Path, bomb: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(f"extends: demo\n{bomb}")
    began = time.process_time()
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert time.process_time() - began < 5


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "extends: demo\nstages:\n  stage1: {optimizer: &opt {lr: 1e-3, weight_decay: 0.2}}\n"
        "  stage2:\n    optimizer:\n      <<: *opt\n      lr: 5e-4\n"
    )
    stages = load_recipe(str(path)).stages
    assert (stages["stage2"].optimizer.lr, stages["stage2"].optimizer.weight_decay) == (5e-4, 0.2)


def test_references_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCP_TEST_WORKERS", "3")
    path = tmp_path / "r.yaml"
    path.write_text(
        "extends: demo\ndescription: ${recipe} with ${oc.env:NCP_TEST_WORKERS} of \\${these} ${oc.env:NCP_NO,none}\nrecipe: r\n"
        "runtime: {num_workers: '${oc.env:NCP_TEST_WORKERS}', local_cpus: '${.staging_tasks}', staging_tasks: 5}\n"
    )
    recipe = load_recipe(str(path))
    assert recipe.description == "r with 3 of ${these} none"
    assert (recipe.runtime.num_workers, recipe.runtime.local_cpus) == (3, 5)


@pytest.mark.parametrize("name", bundled_recipes())
def test_a_recipe_written_out_whole_is_the_same_recipe(tmp_path: Path, name: str) -> None:
    path = tmp_path / "whole.yaml"
    path.write_text(merged_yaml(name))
    assert load_recipe(str(path)) == load_recipe(name)


def test_text_and_quotes_survive_being_written_out() -> None:
    text = "a: 2026_01_05\nb: '007'\nc: [off, \"null\", null, 1e3, '']\nd: \"line\\nbreak\"\n'e: f': {off: 12:30}\n"
    tree = parse(text, "t")
    assert isinstance(tree, Section)
    again = parse(dump(tree), "t")
    assert isinstance(again, Section)

    def leaves(node):
        if hasattr(node, "entries"):
            return {name: leaves(item) for name, item in node.entries.items()}
        return (
            [leaves(item) for item in node.items] if hasattr(node, "items") else (type(node.text), node.text)
        )

    assert leaves(resolve(again)) == leaves(tree)

"""The table of faults is its own memory: what it says is read back, and a row holds only while its code stands."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.record import FaultTable, Row, fault_of, kind_of, paths_that_matter, read_table, write_table

ROW = Row(
    kind="process",
    fault="a killed driver loses nothing: `driver:before:.*/x.json`",
    test="faults/test_kill.py",
    outcome="passed",
    seconds="12.0",
    commit="HEAD",
)


def test_rows_are_read_back_as_they_were_written() -> None:
    rows = [ROW, replace(ROW, fault="another", outcome="skipped: needs bubblewrap")]
    assert read_table(write_table(rows, set())) == sorted(rows, key=lambda row: row.fault)


def test_a_row_whose_code_changed_says_so_and_counts_as_nothing() -> None:
    text = write_table([ROW], {ROW.key})
    assert "0 passed, 0 failed, 0 skipped, 1 not at this code" in text


def test_a_row_of_an_unknown_commit_is_run_again() -> None:
    table = FaultTable()
    table.rows = {ROW.key: replace(ROW, commit="0123456789ab with changes")}
    assert not table.current(ROW.key)


def test_a_failed_row_is_run_again() -> None:
    table = FaultTable()
    table.rows = {ROW.key: replace(ROW, outcome="failed")}
    assert not table.current(ROW.key)


def test_pure_tests_depend_on_the_packages_below_them_alone() -> None:
    assert paths_that_matter("pipeline/data/test_pins.py") == (
        "curriculum",
        "pipeline",
        "tests/pipeline/data/test_pins.py",
    )
    assert "jobs" in paths_that_matter("faults/test_kill.py")


def test_names_become_words() -> None:
    assert fault_of("tests/faults/test_kill.py::test_a_killed_driver[a|b]") == "a killed driver: `a/b`"
    assert kind_of("tests/faults/test_kill.py::test_a_killed_driver") is not None
    assert kind_of("tests/curriculum/test_tokens.py::test_nothing_of_the_table") is None

"""Kinds of faults: what each is, how many other places it was found in, and the tests that hold its rows.

A kind is named by one word in the table. `tests` are patterns of node ids below `tests/` (fnmatch); what no kind claims of
PROCESS_TESTS is of the kind `process`: real signals on real processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    meaning: str
    elsewhere: int | None
    """Places beside the ones first seen where the same kind was found, and mended; None: not counted yet."""
    tests: tuple[str, ...]


PROCESS = "process"
PROCESS_TESTS = ("faults/*", "jobs/evaluation/test_worker.py::*", "pipeline/data/test_staging.py::*")
KINDS: tuple[Kind, ...] = (
    Kind(
        name="K1",
        meaning="a source is trusted by its name",
        elsewhere=5,
        tests=("pipeline/data/test_pins.py::*", "jobs/test_sources.py::*"),
    ),
    Kind(
        name="K2",
        meaning="bytes of somebody else are believed",
        elsewhere=14,
        tests=(
            "pipeline/data/test_token_files.py::*",
            "pipeline/data/test_tokenizer_proof.py::*",
            "jobs/test_tokenizer_source.py::*",
            "jobs/runs/test_initial_checkpoint.py::*",
        ),
    ),
    Kind(
        name="K3",
        meaning="documents lost, doubled or spoilt, and no word",
        elsewhere=4,
        tests=(
            "pipeline/data/test_source_files.py::*",
            "pipeline/data/test_finish.py::*",
            "pipeline/data/test_accounts.py::*",
            "pipeline/data/test_inspect.py::*",
            "pipeline/data/test_cleaning.py::*",
        ),
    ),
    Kind(
        name="K4-K6",
        meaning="recipes: mappings that cannot be replaced, numbers without bounds, what a plan could have known",
        elsewhere=8,  # mixture weights, rope_stride, one chunk a window, held-out text of nothing, a vocabulary that the text
        # does not fill, and --samples, --max-tokens, --step
        tests=(
            "curriculum/test_load.py::*",
            "curriculum/test_bounds.py::*",
            "curriculum/test_layers.py::*",
            "curriculum/test_recipe_text.py::*",
            "jobs/plan/test_checks.py::*",
            "jobs/plan/test_fuzz.py::*",
        ),
    ),
    Kind(
        name="K7",
        meaning="paths taken for patterns, places mistaken",
        elsewhere=3,  # `a::b` taken for a chain of file systems, datatrove's glob below a store, a file given as a store
        tests=(
            "pipeline/test_places.py::*",
            "pipeline/data/test_literal_folder.py::*",
            "pipeline/test_answers.py::test_no_name*",
            "pipeline/test_answers.py::*brackets*",
        ),
    ),
    Kind(
        name="K8-K10",
        meaning="records of other versions, tracebacks where one line belongs, order lost in a mapping",
        elsewhere=30,
        tests=(
            "jobs/test_boundary.py::*",
            "jobs/commands/test_services.py::*",
            "jobs/runs/test_records_of_other_versions.py::*",
            "jobs/test_command_fuzz.py::*",
            "jobs/show/test_any_text.py::*",
            "jobs/cluster/test_reach.py::*",
        ),
    ),
    Kind(
        name="K11",
        meaning="a number that says more than it knows",
        elsewhere=7,  # the rate of an attempt that is over, the end of one that stands still; cost, windows and FLOPs of a
        # stage with its parent's state; held-out text read twice; bounds in sums
        tests=(
            "jobs/commands/test_compare.py::*",
            "jobs/analysis/test_comparison.py::*",
            "jobs/runs/test_status.py::*",
            "benchmarks/test_coverage.py::*",
        ),
    ),
    Kind(
        name="K12",
        meaning="secrets in records and command lines",
        elsewhere=0,  # one check over every text of a recipe
        tests=("curriculum/test_secrets.py::*", "pipeline/test_redaction.py::*"),
    ),
    Kind(
        name="K13",
        meaning="the network's edges",
        elsewhere=5,
        tests=("ncp_model/test_generate.py::*", "ncp_model/test_optim.py::*", "ncp_model/test_losses.py::*"),
    ),
    Kind(
        name="K14",
        meaning="storage that stumbles ends what it should not",
        elsewhere=5,  # DCP's own streams, Ray Train's own files, leases that lapse, a lost answer to a create, open files
        tests=("pipeline/test_answers.py::*", "faults/test_outages.py::*"),
    ),
    Kind(
        name="K15",
        meaning="a checkpoint, or another durable file, is trusted by its size",
        elsewhere=13,
        tests=(
            "jobs/training/test_damaged_milestone.py::*",
            "pipeline/test_records.py::*",
            "faults/test_bit_flips.py::*",
            "faults/test_retention_beside_readers.py::*",
        ),
    ),
    Kind(
        name="K16",
        meaning="a score that is wrong or says less than it should",
        elsewhere=4,  # choices of one question after different contexts, shots that are not the file's, own tasks' worked
        # examples, MMLU's lettered form
        tests=(
            "jobs/evaluation/test_own_records.py::*",
            "jobs/analysis/test_scaling.py::*",
            "jobs/evaluation/test_tasks.py::*",
            "jobs/evaluation/test_window.py::*",
            "jobs/evaluation/test_catalogue.py::*",
        ),
    ),
    Kind(
        name="K17",
        meaning="the sandbox for generated programs",
        elsewhere=4,
        tests=("jobs/evaluation/test_sandbox.py::*",),
    ),
    Kind(
        name="K18",
        meaning="what only watches can hang or end a run; absence taken as proof",
        elsewhere=6,
        tests=("jobs/training/test_tracking.py::*", "jobs/training/test_watchdog.py::*"),
    ),
)

"""The numbers, tables and the plot of docs/studies/ncp_against_baselines.md.

    python -m tests.benchmarks.study_tables collect words --work study-work     # results of the trainer -> CSV
    python -m tests.benchmarks.study_tables write                               # CSV -> the page's tables and plots

There are two studies, `words` and `bytes`, by what their tokens are; they differ in recipes and sizes alone.

Intervals: the same held-out documents are scored by all models, so a difference of two models is bootstrapped over
documents, each with its difference averaged over the seeds that both have: how far the choice of the text decides. Beside it
stands Student's t over the seeds: how far the initialisation and the order of the batches do.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.analysis.comparison import mean_interval
from jobs.evaluation.heldout import ratio_interval

STUDIES = Path(__file__).parent.parent.parent / "docs" / "studies"
PAGE = STUDIES / "ncp_against_baselines.md"
NUMBERS = STUDIES / "ncp_against_baselines"
CURVE_STEPS = 16
"""Training losses are averaged over this many steps in curves.csv."""

STUDIES_OF = ("words", "bytes")
LABELS = {
    "vanilla": "vanilla, 4 layers (E+D)",
    "equal-compute": "vanilla, 5 layers (equal compute)",
    "equal-parameters": "vanilla, 6 layers (equal parameters)",
    "ncp": "NCP 2/2/2",
}
COLORS = {"vanilla": "#7a7a7a", "equal-compute": "#2b6cb0", "equal-parameters": "#2f855a", "ncp": "#c05621"}
CURVE_RATE = "1.6e-2"
"""The rate at which the models' training losses are put side by side; every study tried it for all of them."""
RUN_COLUMNS = (
    "name",
    "phase",
    "recipe",
    "seed",
    "overrides",
    "lr",
    "tokens",
    "parameters",
    "flops_per_token",
    "cpu_seconds",
    "heldout_nats_per_token",
    "heldout_bits_per_byte",
    "train_nats_last_64",
    "zero_concept_nats_per_token",
    "ncp_mse",
    "ncp_r2_mean",
    "ncp_r2_copy",
    "codebook_perplexity",
    "codebook_dead",
)
Row = dict[str, str]


def collect(work: Path, numbers: Path) -> None:
    """WORK/runs/*.json -> runs.csv, documents.csv (nats of every held-out document) and curves.csv.

    Runs under way are in curves.csv alone.
    """
    results = [json.loads(path.read_text()) for path in sorted((work / "runs").glob("*.json"))]
    numbers.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for result in results:
        row = {column: result.get(column, "") for column in RUN_COLUMNS}
        row["overrides"] = " ".join(result["overrides"])
        row["train_nats_last_64"] = float(np.mean(result["history"]["ntp"][-64:]))
        rows.append({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items() if v is not None})
    _write(numbers / "runs.csv", RUN_COLUMNS, rows)

    documents: dict[str, dict[str, Any]] = {}
    for result in results:
        for document in result["documents"]:
            entry = documents.setdefault(
                document["document"],
                {key: document[key] for key in ("document", "tokens", "bytes")},
            )
            entry[result["name"]] = f"{document['nats']:.3f}"
    names = [result["name"] for result in results]
    _write(numbers / "documents.csv", ("document", "tokens", "bytes", *names), documents.values())

    histories = {result["name"]: result["history"] for result in results}
    for path in sorted((work / "states").glob("*.pt")):  # runs that are under way
        steps = torch.load(path, weights_only=True)["history"]
        histories[path.stem] = dict(zip(("ntp", "ncp", "vq"), zip(*steps, strict=True), strict=False))
    curves = []
    for name, history in histories.items():
        for term in ("ntp", "ncp", "vq"):
            values = history[term]
            if term != "ntp" and not any(values):
                continue
            for start in range(0, len(values) - CURVE_STEPS + 1, CURVE_STEPS):
                mean = float(np.mean(values[start : start + CURVE_STEPS]))
                curves.append(
                    {"name": name, "loss": term, "step": start + CURVE_STEPS, "mean": f"{mean:.4f}"}
                )
    _write(numbers / "curves.csv", ("name", "loss", "step", "mean"), curves)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Numbers:
    """The CSV files, with the comparisons the page makes."""

    def __init__(self, folder: Path) -> None:
        self.runs = read_rows(folder / "runs.csv")
        for run in self.runs:
            run["model"] = run["recipe"].removeprefix("study-").removeprefix("words-")
        self.curves = read_rows(folder / "curves.csv")
        table = read_rows(folder / "documents.csv")
        self.tokens = np.array([float(row["tokens"]) for row in table])
        self.sizes = np.array([float(row["bytes"]) for row in table])
        self.nats = {
            run["name"]: np.array([float(row[run["name"]] or "nan") for row in table]) for run in self.runs
        }

    def phase(self, phase: str) -> list[Row]:
        return [run for run in self.runs if run["phase"] == phase]

    def tuned(self) -> dict[str, Row]:
        """Model -> its tuning run with the lowest held-out loss."""
        best: dict[str, Row] = {}
        for run in self.phase("tuning"):
            kept = best.get(run["model"])
            if kept is None or self.loss([run["name"]])[0] < self.loss([kept["name"]])[0]:
                best[run["model"]] = run
        return best

    def comparison(self) -> dict[str, dict[str, str]]:
        """Model -> seed -> run, at the learning rate that did best over the seeds, of those that were run with the most seeds."""
        by_rate: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for phase in ("tuning", "comparison", "rate"):
            for run in self.phase(phase):
                by_rate[run["model"], run["lr"]][run["seed"]] = run["name"]
        groups: dict[str, dict[str, str]] = {}
        for (model, _), seeds in by_rate.items():
            kept = groups.get(model)
            if kept is None or self._rank(seeds) < self._rank(kept):
                groups[model] = seeds
        return groups

    def _rank(self, seeds: Mapping[str, str]) -> tuple[int, float]:
        return -len(seeds), float(self.loss(seeds.values()).mean())

    def equal_flops(self) -> dict[str, dict[str, str]]:
        """As `comparison`, with the runs of the phase `equal-flops` in place of the models that have any."""
        groups: dict[str, dict[str, str]] = defaultdict(dict)
        for run in self.phase("equal-flops"):
            groups[run["model"]][run["seed"]] = run["name"]
        return {**self.comparison(), **groups}

    def loss(self, names: Iterable[str]) -> NDArray[np.float64]:
        """Held-out nats per token of each run, over the documents that all runs of the study were scored on."""
        common = self.common()
        return np.array([self.nats[name][common].sum() / self.tokens[common].sum() for name in names])

    def bits_per_byte(self, names: Iterable[str]) -> NDArray[np.float64]:
        common = self.common()
        scale = math.log(2) * self.sizes[common].sum()
        return np.array([self.nats[name][common].sum() / scale for name in names])

    def common(self) -> NDArray[np.bool_]:
        return np.all([np.isfinite(values) for values in self.nats.values()], axis=0)

    def difference(
        self, ours: Mapping[str, str], theirs: Mapping[str, str]
    ) -> tuple[float, tuple[float, float], list[float]]:
        """Held-out nats per token of `ours` minus `theirs` (seed -> run): mean, 95 % interval, and one value a seed."""
        seeds = sorted(set(ours) & set(theirs))
        common = self.common()
        tokens = self.tokens[common]
        each = [self.nats[ours[s]][common] - self.nats[theirs[s]][common] for s in seeds]
        interval = ratio_interval(np.mean(each, axis=0), tokens)
        assert interval is not None
        per_seed = [float(values.sum() / tokens.sum()) for values in each]
        return float(np.mean(per_seed)), interval, per_seed


def corpus_table(numbers: Numbers) -> str:
    common = numbers.common()
    return (
        f"{int(common.sum())} held-out documents, {int(numbers.tokens[common].sum()):,} tokens, "
        f"{int(numbers.sizes[common].sum()):,} bytes are scored by every run."
    )


def runs_table(numbers: Numbers, phase: str) -> str:
    lines = [
        "| run | recipe | seed | overrides | LR | tokens | MFLOP/token | held-out nats/token | bits/byte | training, last 64 steps |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in sorted(numbers.phase(phase), key=lambda run: (list(LABELS).index(run["model"]), run["name"])):
        (loss,) = numbers.loss([run["name"]])
        (bits,) = numbers.bits_per_byte([run["name"]])
        lines.append(
            f"| {run['name']} | {run['recipe']} | {run['seed']} | {run['overrides'] or '-'} | {float(run['lr']):g} "
            f"| {int(run['tokens']):,} | {float(run['flops_per_token']) / 1e6:.3f} | {loss:.4f} | {bits:.4f} "
            f"| {float(run['train_nats_last_64']):.4f} |"
        )
    return "\n".join(lines)


def comparison_table(numbers: Numbers, groups: Mapping[str, Mapping[str, str]]) -> str:
    """One row a model: size, compute, mean and spread over seeds, and the difference of NCP to it."""
    ncp = groups.get("ncp", {})
    lines = [
        "| model | LR | parameters | tokens | MFLOP/token | TFLOP | seeds | nats/token, mean (standard deviation) | bits/byte "
        "| NCP minus this, nats/token [95 % over documents] | 95 % over seeds | by seed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for model in LABELS:
        if model not in groups:
            continue
        names = list(groups[model].values())
        run = next(run for run in numbers.runs if run["name"] == names[0])
        losses, bits = numbers.loss(names), numbers.bits_per_byte(names)
        spread = f" ({losses.std(ddof=1):.4f})" if len(losses) > 1 else ""
        versus, over_seeds, seeds = "-", "-", "-"
        if model != "ncp" and set(ncp) & set(groups[model]):
            mean, (low, high), each = numbers.difference(ncp, groups[model])
            versus = f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"
            if (interval := mean_interval(each)) is not None:
                over_seeds = f"[{interval[0]:+.4f}, {interval[1]:+.4f}]"
            seeds = ", ".join(f"{value:+.4f}" for value in each)
        flops, tokens = float(run["flops_per_token"]), int(run["tokens"])
        lines.append(
            f"| {LABELS[model]} | {float(run['lr']):g} | {int(run['parameters']):,} | {tokens:,} | {flops / 1e6:.3f} "
            f"| {flops * tokens / 1e12:.3f} | {len(names)} | {losses.mean():.4f}{spread} | {bits.mean():.4f} | {versus} | {over_seeds} | {seeds} |"
        )
    return "\n".join(lines)


def curves_table(numbers: Numbers) -> str:
    """Training loss of the runs at seed 1 and equal rate, which see the same batches, in eighths of their steps."""
    names = [f"tuning-{model}-{CURVE_RATE}" for model in ("vanilla", "compute", "parameters", "ncp")]
    losses: dict[str, list[float]] = defaultdict(list)
    for row in numbers.curves:
        if row["loss"] == "ntp":
            losses[row["name"]].append(float(row["mean"]))
    names = [name for name in names if name in losses]
    each = min(len(losses[name]) for name in names) // 8
    lines = [f"| steps | {' | '.join(names)} |", "|---:|" + "---:|" * len(names)]
    for first in range(0, 8 * each, each):
        means = [np.mean(losses[name][first : first + each]) for name in names]
        steps = f"{first * CURVE_STEPS + 1} - {(first + each) * CURVE_STEPS}"
        lines.append(f"| {steps} | {' | '.join(f'{mean:.4f}' for mean in means)} |")
    return "\n".join(lines)


def knobs_table(numbers: Numbers, reference: str, phase: str = "knobs") -> str:
    """One row a variant of NCP, against the run `reference` of the same seed, rate and tokens."""
    lines = [
        "| variant | nats/token | minus reference [95 % over documents] | without its concepts | R2 of concepts against their mean | against the last concept | codebook perplexity |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    base = next((run for run in numbers.runs if run["name"] == reference), None)
    if base is None:
        return "(not run)"
    for run in (base, *numbers.phase(phase)):
        (loss,) = numbers.loss([run["name"]])
        versus = "-"
        if run is not base:
            mean, (low, high), _ = numbers.difference({"": run["name"]}, {"": reference})
            versus = f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"
        changed = [part for part in run["overrides"].split() if "lr=" not in part]
        label = f"{run['recipe']}, the reference" if run is base else " ".join((run["recipe"], *changed))
        cells = [
            f"{float(run[column]):.{digits}f}" if run[column] else "-"
            for column, digits in (
                ("zero_concept_nats_per_token", 4),
                ("ncp_r2_mean", 3),
                ("ncp_r2_copy", 3),
                ("codebook_perplexity", 1),
            )
        ]
        lines.append(f"| {label} | {loss:.4f} | {versus} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(numbers: Numbers) -> str:
    """Held-out loss over training compute: a ring a run, a bar at the mean of a model's runs."""
    width, height, left, right, top, bottom = 720, 380, 64, 20, 24, 92
    names = {name for seeds in numbers.comparison().values() for name in seeds.values()}
    runs = [run for run in numbers.runs if run["name"] in names or run["phase"] == "equal-flops"]
    if not runs:
        return ""
    xs = np.array([float(run["flops_per_token"]) * int(run["tokens"]) / 1e12 for run in runs])
    ys = numbers.loss([run["name"] for run in runs])
    x_low, x_high = xs.min() * 0.9, xs.max() * 1.08
    margin = 0.12 * (ys.max() - ys.min() or 0.1)
    y_low, y_high = ys.min() - margin, ys.max() + margin

    def to_x(value: float) -> float:
        return left + math.log(value / x_low) / math.log(x_high / x_low) * (width - left - right)

    def to_y(value: float) -> float:
        return top + (y_high - value) / (y_high - y_low) * (height - top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for value in np.linspace(y_low, y_high, 6):
        y = to_y(float(value))
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{value:.3f}</text>')
    for value in np.geomspace(x_low, x_high, 6):
        x = to_x(float(value))
        parts.append(
            f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle" fill="#444">{value:.2f}</text>'
        )
    parts.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - bottom + 38}" text-anchor="middle" fill="#222">'
        "training compute, TFLOP (logarithmic); every point has a learning rate schedule of its own</text>"
    )
    parts.append(f'<text x="{left - 54}" y="14" fill="#222">held-out nats/token</text>')
    for x, y, run in zip(xs, ys, runs, strict=True):
        color = COLORS[run["model"]]
        parts.append(
            f'<circle cx="{to_x(float(x)):.1f}" cy="{to_y(float(y)):.1f}" r="4.5" fill="none" stroke="{color}" stroke-width="1.8"/>'
        )
    means: dict[tuple[str, float], list[float]] = defaultdict(list)
    for x, y, run in zip(xs, ys, runs, strict=True):
        means[run["model"], float(x)].append(float(y))
    for (model, x), values in means.items():
        y = to_y(float(np.mean(values)))
        parts.append(
            f'<line x1="{to_x(x) - 11:.1f}" x2="{to_x(x) + 11:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{COLORS[model]}" stroke-width="2.5"/>'
        )
    for index, (model, label) in enumerate(LABELS.items()):
        x, y = left + (index % 2) * 320, height - 30 + (index // 2) * 18
        parts.append(
            f'<circle cx="{x}" cy="{y - 4}" r="4.5" fill="none" stroke="{COLORS[model]}" stroke-width="1.8"/>'
        )
        parts.append(f'<text x="{x + 12}" y="{y}" fill="#222">{label}</text>')
    return "\n".join((*parts, "</svg>", ""))


TABLES: dict[str, Callable[[Numbers], str]] = {
    "heldout": corpus_table,
    "regime": lambda numbers: runs_table(numbers, "regime"),
    "tuning": lambda numbers: runs_table(numbers, "tuning"),
    "curves": curves_table,
    "comparison": lambda numbers: comparison_table(numbers, numbers.comparison()),
    "equal-flops": lambda numbers: comparison_table(numbers, numbers.equal_flops()),
    "knobs": lambda numbers: knobs_table(numbers, numbers.tuned()["ncp"]["name"]),
}


def write(studies: Mapping[str, Numbers], page: str) -> str:
    """The page with the tables between its `<!-- table STUDY/NAME -->` and `<!-- end -->` lines made anew."""

    def fill(match: re.Match[str]) -> str:
        study, name = match[1], match[2]
        return f"<!-- table {study}/{name} -->\n{TABLES[name](studies[study])}\n<!-- end -->"

    return re.sub(r"<!-- table (\w+)/([\w-]+) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    actions = parser.add_subparsers(dest="action", required=True)
    collecting = actions.add_parser("collect")
    collecting.add_argument("study", choices=STUDIES_OF)
    collecting.add_argument("--work", type=Path, default=Path("study-work"))
    actions.add_parser("write")
    arguments = parser.parse_args()
    if arguments.action == "collect":
        collect(arguments.work, NUMBERS / arguments.study)
        return
    studies = {study: Numbers(NUMBERS / study) for study in STUDIES_OF}
    for study, numbers in studies.items():
        (NUMBERS / study / "loss_over_compute.svg").write_text(plot(numbers))
    PAGE.write_text(write(studies, PAGE.read_text()))


if __name__ == "__main__":
    main()

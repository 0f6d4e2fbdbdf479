"""The DAG of a plan as a drawing: text for a terminal, one SVG, or one HTML page around it (`jobs.show.report.dag_drawing`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from jobs.show.report.dag_drawing import DagNode, draw_dag
from pipeline.dag.plan import PlannedStep

_PAINTED = {"done": "done", "running": "running", "failed": "failed", "resumable": "stopped"}
"""A plan's state by its first word -> the state that is drawn; all others wait."""


def plan_nodes(rows: Sequence[PlannedStep]) -> list[DagNode]:
    return [
        DagNode(
            name=row.step.name,
            needs=row.step.needs,
            after=tuple(name for name in row.step.after if name not in row.step.needs),
            state=_PAINTED.get(row.state.split()[0], "waiting"),
            note=row.state,
            detail=row.detail,
        )
        for row in rows
    ]


def graph_text(nodes: Sequence[DagNode]) -> str:
    """One line a step, indented by the longest road to it, with what it hangs on; `(...)` are steps it only comes after."""
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node.name] = 1 + max((depth[name] for name in node.hangs_on), default=-1)
    width = max((2 * depth[node.name] + len(node.name) for node in nodes), default=0)
    return "\n".join(_line(node, depth, width) for node in sorted(nodes, key=lambda node: depth[node.name]))


def _line(node: DagNode, depth: Mapping[str, int], width: int) -> str:
    edges = ", ".join([*node.needs, *(f"({name})" for name in node.after)])
    name = f"{'  ' * depth[node.name]}{node.name}"
    return f"{name:<{width}}  {node.note or node.state:<9}{f'  <- {edges}' if edges else ''}".rstrip()


def graph_svg(nodes: Sequence[DagNode]) -> str:
    """A standalone SVG; every text in it is escaped."""
    return draw_dag(nodes, standalone=True)


def graph_html(nodes: Sequence[DagNode], title: str) -> str:
    """One self-contained page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title></head>"
        f'<body><h1 style="font: 600 20px system-ui, sans-serif">{escape(title)}</h1>{graph_svg(nodes)}</body></html>\n'
    )

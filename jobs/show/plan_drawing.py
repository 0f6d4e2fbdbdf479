"""The DAG as a drawing: text for a terminal, one SVG, or one HTML page around it. No library, no external asset.

Layered layout from left to right: a node's layer is the longest road to it; within a layer nodes are ordered by the mean
place of what they hang on, twice over, which removes most crossings of graphs as small as a curriculum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pipeline.dag.plan import PlannedStep

NODE_WIDTH, NODE_HEIGHT = 208, 44
GAP_X, GAP_Y, MARGIN = 56, 18, 16
MAX_LABEL = 26
"""Characters of a name or a detail that fit into a node; the rest is in its tooltip."""
CSS = """
.dag { font: 13px/1.3 system-ui, "Segoe UI", Roboto, Arial, sans-serif; max-width: none; }
.dag rect { fill: #fff; stroke: #8a929c; stroke-width: 1.5; }
.dag text { fill: #16191d; } .dag .detail { fill: #5b6470; font-size: 11px; }
.dag path { fill: none; stroke: #8a929c; stroke-width: 1.3; } .dag path.after { stroke-dasharray: 4 4; }
.dag .done rect { stroke: #1a7f4b; fill: #eaf6ef; } .dag .running rect { stroke: #2f62d0; fill: #eef3fb; }
.dag .resumable rect { stroke: #9a6700; fill: #fff6dc; } .dag .failed rect { stroke: #c1362f; fill: #fdecea; }
.dag .unknown rect { stroke-dasharray: 4 3; }
"""


@dataclass(frozen=True, kw_only=True)
class Node:
    """What is drawn of a step. `needs` are solid edges, `after` dashed ones; both name earlier nodes."""

    name: str
    state: str
    detail: str = ""
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def plan_nodes(rows: Sequence[PlannedStep]) -> list[Node]:
    return [
        Node(
            name=row.step.name,
            state=row.state,
            detail=row.detail,
            needs=row.step.needs,
            after=tuple(name for name in row.step.after if name not in row.step.needs),
        )
        for row in rows
    ]


def layers(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes by layer, each layer in drawing order."""
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node.name] = 1 + max((depth[name] for name in (*node.needs, *node.after)), default=-1)
    found: list[list[Node]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node in nodes:
        found[depth[node.name]].append(node)
    place = {node.name: float(index) for layer in found for index, node in enumerate(layer)}
    for _ in range(2):
        for layer in found:
            layer.sort(key=lambda node: _mean([place[name] for name in (*node.needs, *node.after)]))
            place |= {node.name: index - (len(layer) - 1) / 2 for index, node in enumerate(layer)}
    return found


def graph_text(nodes: Sequence[Node]) -> str:
    """One line a step, indented by layer, with what it hangs on; `(...)` are steps it only comes after."""
    lines = []
    width = max(
        (2 * depth + len(node.name) for depth, layer in enumerate(layers(nodes)) for node in layer), default=0
    )
    for depth, layer in enumerate(layers(nodes)):
        for node in layer:
            edges = [*node.needs, *(f"({name})" for name in node.after)]
            name = f"{'  ' * depth}{node.name}"
            lines.append(f"{name:<{width}}  {node.state:<9}" + (f"  <- {', '.join(edges)}" if edges else ""))
    return "\n".join(line.rstrip() for line in lines)


def graph_svg(nodes: Sequence[Node]) -> str:
    """A standalone SVG; every text in it is escaped."""
    columns = layers(nodes)
    tallest = max((len(layer) for layer in columns), default=0)
    height = 2 * MARGIN + tallest * NODE_HEIGHT + max(0, tallest - 1) * GAP_Y
    width = 2 * MARGIN + len(columns) * NODE_WIDTH + max(0, len(columns) - 1) * GAP_X
    corner: dict[str, tuple[float, float]] = {}
    for column, layer in enumerate(columns):
        top = (height - len(layer) * NODE_HEIGHT - (len(layer) - 1) * GAP_Y) / 2
        for row, node in enumerate(layer):
            corner[node.name] = (
                MARGIN + column * (NODE_WIDTH + GAP_X),
                top + row * (NODE_HEIGHT + GAP_Y),
            )
    edges = [
        _edge(corner[other], corner[node.name], kind)
        for node in nodes
        for kind, others in (("needs", node.needs), ("after", node.after))
        for other in others
    ]
    boxes = [_box(node, *corner[node.name]) for node in nodes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dag" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="steps of the run">'
        f"<style>{CSS}</style>{''.join(edges)}{''.join(boxes)}</svg>"
    )


def graph_html(nodes: Sequence[Node], title: str) -> str:
    """One self-contained page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title></head>"
        f'<body><h1 style="font: 600 20px system-ui, sans-serif">{escape(title)}</h1>{graph_svg(nodes)}</body></html>\n'
    )


def _edge(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    x0, y0 = start[0] + NODE_WIDTH, start[1] + NODE_HEIGHT / 2
    x1, y1 = end[0], end[1] + NODE_HEIGHT / 2
    bend = max(GAP_X / 2, (x1 - x0) / 2)
    return (
        f'<path class="{kind}" d="M{x0:g} {y0:g} C{x0 + bend:g} {y0:g} {x1 - bend:g} {y1:g} {x1:g} {y1:g}"/>'
    )


def _box(node: Node, x: float, y: float) -> str:
    state = escape(node.state.replace(" ", "-"), quote=True)
    return (
        f'<g class="{state}"><title>{escape(f"{node.name}: {node.state}. {node.detail}")}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="7"/>'
        f'<text x="{x + 12:g}" y="{y + 19:g}">{escape(_cut(node.name))}</text>'
        f'<text class="detail" x="{x + 12:g}" y="{y + 35:g}">{escape(_cut(node.state))}</text></g>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 3]}..."


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0

"""A DAG as an SVG: columns from left to right, each step right of all that it needs. Pure: rows in, text out.

The layout is Sugiyama's in small: longest-path columns, long edges routed through reserved gaps, order within a column
by a few barycentre sweeps, positions as close to the neighbours as the order allows (least squares). Edges that follow
from others are left out, and steps of equal kind that share all their neighbours are drawn as one box when there are
many of them (a mixture of forty sources is one box, not forty).

Colours are classes (`done`, `running`, `failed`, `waiting`, `stopped`, `other`), which the page's style sheet paints. A
`standalone` drawing carries a style sheet of its own, light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise

STATES = ("done", "running", "failed", "waiting", "stopped")
COLLAPSE_OVER = 6
"""More steps than this with the same needs and the same dependants become one box."""

_CHARACTER = 7.8
_LONGEST = 24
"""Characters of a name before it is cut; the whole one is in the box's title."""
_HEIGHT, _GAP, _COLUMN_GAP, _MARGIN = 44, 14, 52, 2
_LANE = 10
"""Height reserved where a long edge passes a column."""

_STYLE = """
svg { color-scheme: light dark; --paper: #fff; --ink: #16191d; --soft: #5b6470; --line: #8a929c; --good: #1a7f4b;
  --run: #2f62d0; --bad: #c1362f; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { svg { --paper: #171b20; --ink: #e8ebee; --soft: #a3acb7; --line: #78818c;
  --good: #58c78b; --run: #7ba4ff; --bad: #f0837b; --warn: #e0b04a; } }
.box { fill: var(--paper); stroke: var(--color); stroke-width: 1.4; } .dot { fill: var(--color); }
.edge { fill: none; stroke: var(--line); stroke-width: 1.2; } .edge.after { stroke-dasharray: 4 4; } .head { fill: var(--line); }
text { font: 600 12.5px system-ui, sans-serif; fill: var(--ink); } text.note { font: 11px system-ui, sans-serif; fill: var(--soft); }
.node { --color: var(--line); } .node.done { --color: var(--good); } .node.running { --color: var(--run); }
.node.failed { --color: var(--bad); } .node.stopped { --color: var(--warn); }
"""


@dataclass(frozen=True, kw_only=True)
class DagNode:
    """One step to draw."""

    name: str
    needs: tuple[str, ...] = ()
    """Names of other nodes; one that is not among the nodes is ignored."""
    after: tuple[str, ...] = ()
    """Nodes that it only comes after, without reading what they made: dashed."""
    state: str = "waiting"
    note: str = ""
    """A few words under the name: `67 %`, `4:05`; by default the state."""
    detail: str = ""
    """More, for who points at the box."""

    @property
    def hangs_on(self) -> tuple[str, ...]:
        return (*self.needs, *self.after)


def draw_dag(nodes: Sequence[DagNode], *, standalone: bool = False, title: str = "steps of the run") -> str:
    """The SVG of `nodes`, in the order given where the edges leave a choice. Empty for no nodes.

    `standalone` makes a file of its own (namespace and style); otherwise it is a part of a page. Raises ValueError for a
    cycle or a name used twice.
    """
    if not nodes:
        return ""
    nodes = _collapse(nodes)
    dashed = {(other, node.name) for node in nodes for other in node.after if other not in node.needs}
    edges = _reduced(
        {node.name: node.needs for node in nodes}
    )  # what is needed is no less so for coming after
    edges += [edge for edge in _reduced({node.name: node.hangs_on for node in nodes}) if edge in dashed]
    layout = _layout(nodes, edges)
    parts = [
        f'<path class="edge{" after" if edge in dashed else ""}" d="{path}"/><path class="head" d="M{x:.1f} {y:.1f}l-7 -3.5v7z"/>'
        for edge, (path, x, y) in zip(edges, layout.edges, strict=True)
    ]
    parts += [_box(node, *layout.places[node.name]) for node in nodes]
    size = f'width="{layout.width:.0f}" height="{layout.height:.0f}" viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    opening = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ' class="dag"'
    style = f"<style>{_STYLE}</style>" if standalone else ""
    return f'<svg{opening} {size} role="img" aria-label="{escape(title, quote=True)}">{style}{"".join(parts)}</svg>'


def _box(node: DagNode, x: float, y: float, width: float) -> str:
    state = node.state if node.state in STATES else "other"
    name = node.name if len(node.name) <= _LONGEST else node.name[: _LONGEST - 1] + "\u2026"
    note = node.note or node.state
    told = dict.fromkeys(part for part in (node.state, note, node.detail) if part)
    whole = f"{node.name}: {', '.join(told)}"
    return (
        f'<g class="node {state}"><title>{escape(whole)}</title>'
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT}" rx="7"/>'
        f'<circle class="dot" cx="{x + 13:.1f}" cy="{y + 16:.1f}" r="4"/>'
        f'<text x="{x + 24:.1f}" y="{y + 20.3:.1f}">{escape(name)}</text>'
        f'<text class="note" x="{x + 24:.1f}" y="{y + 35.5:.1f}">{escape(note[:_LONGEST])}</text></g>'
    )


def _collapse(nodes: Sequence[DagNode]) -> list[DagNode]:
    """One node for each crowd of steps that share all neighbours and the part of their name before the first '-'."""
    known = {node.name for node in nodes}
    if len(known) != len(nodes):
        raise ValueError("dag: a step name is used twice; names are unique")
    dependants: dict[str, list[str]] = {name: [] for name in known}
    for node in nodes:
        for need in node.hangs_on:
            if need in known:
                dependants[need].append(node.name)
    groups: dict[tuple[object, ...], list[DagNode]] = {}
    for node in nodes:
        hangs_on = frozenset(node.needs) & known, frozenset(node.after) & known
        key = (node.name.split("-")[0], *hangs_on, frozenset(dependants[node.name]))
        groups.setdefault(key, []).append(node)
    renamed: dict[str, str] = {}
    merged: dict[str, DagNode] = {}
    for (prefix, *_), members in groups.items():
        if len(members) <= COLLAPSE_OVER:
            continue
        name = f"{prefix}-* x {len(members)}"
        while name in known or name in merged:
            name += "'"
        merged[name] = replace(members[0], name=name, detail="", **_summary(members))
        renamed |= {member.name: name for member in members}
    drawn: dict[str, DagNode] = {}
    for node in nodes:
        chosen = merged[renamed[node.name]] if node.name in renamed else node
        needs, after = (
            tuple(dict.fromkeys(renamed.get(name, name) for name in names if name in known))
            for names in (chosen.needs, chosen.after)
        )
        drawn[chosen.name] = replace(chosen, needs=needs, after=after)
    return list(drawn.values())


def _summary(members: Sequence[DagNode]) -> dict[str, str]:
    counts: dict[str, int] = {}
    for member in members:
        counts[member.state] = counts.get(member.state, 0) + 1
    urgent = next((state for state in ("failed", "running", "stopped") if state in counts), None)
    state = urgent or ("done" if set(counts) == {"done"} else next(s for s in counts if s != "done"))
    done = f"{counts.get('done', 0)} of {len(members)} done"
    return {"state": state, "note": f"{counts[urgent]} {urgent}, {done}" if urgent else done}


def _reduced(needs: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Edges (needed, needing) that do not follow from other edges. Raises ValueError for a cycle."""
    above: dict[str, set[str]] = {}
    active: set[str] = set()
    for start in needs:
        stack = [start]
        while stack:
            name = stack[-1]
            if name in above:
                stack.pop()
                continue
            active.add(name)
            open_needs = [need for need in needs[name] if need not in above]
            if any(need in active for need in open_needs):
                raise ValueError(f"dag: step {name!r} needs itself, by way of {open_needs[0]!r}")
            if open_needs:
                stack.append(open_needs[0])
                continue
            above[name] = set().union(*({need} | above[need] for need in needs[name]))
            active.discard(name)
            stack.pop()
    return [
        (need, name)
        for name, direct in needs.items()
        for need in dict.fromkeys(direct)
        if not any(need in above[other] for other in direct)
    ]


@dataclass(kw_only=True)
class _Layout:
    width: float = 0.0
    height: float = 0.0
    places: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Name -> left, top, width."""
    edges: list[tuple[str, float, float]] = field(default_factory=list)
    """Path, and where it ends."""


@dataclass(eq=False)
class _Slot:
    """A place in a column: a box, or the lane of an edge that passes by."""

    name: str
    height: float
    left: list[_Slot] = field(default_factory=list)
    right: list[_Slot] = field(default_factory=list)
    centre: float = 0.0


def _layout(nodes: Sequence[DagNode], edges: Sequence[tuple[str, str]]) -> _Layout:
    column_of = _columns(nodes, edges)
    columns: list[list[_Slot]] = [[] for _ in range(1 + max(column_of.values()))]
    slots = {node.name: _Slot(node.name, _HEIGHT) for node in nodes}
    for node in nodes:
        columns[column_of[node.name]].append(slots[node.name])
    chains = [_chain(slots[a], slots[b], column_of[a], column_of[b], columns) for a, b in edges]
    for sweep in range(8):
        _order(columns if sweep % 2 == 0 else columns[::-1], forward=sweep % 2 == 0)
    for column in columns:
        _spread(column, [index * (_HEIGHT + _GAP) for index in range(len(column))])
    for sweep in range(12):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            _spread(column, [_pull(slot) for slot in column])
    top = min(slot.centre - slot.height / 2 for column in columns for slot in column) - _MARGIN
    layout = _Layout()
    x = float(_MARGIN)
    ends: list[tuple[float, float]] = []
    for column in columns:
        width = max((_width(node) for node in nodes if slots[node.name] in column), default=0.0)
        for slot in column:
            slot.centre -= top
            layout.height = max(layout.height, slot.centre + slot.height / 2 + _MARGIN)
            if slot.name:
                layout.places[slot.name] = (x, slot.centre - _HEIGHT / 2, width)
        ends.append((x, x + width))
        x += width + _COLUMN_GAP
    layout.width = x - _COLUMN_GAP + _MARGIN
    layout.edges = [_path(chain, column_of[chain[0].name], ends) for chain in chains]
    return layout


def _width(node: DagNode) -> float:
    name, note = min(len(node.name), _LONGEST), min(len(node.note or node.state), _LONGEST)
    return 36 + max(_CHARACTER * name, 6.2 * note)


def _columns(nodes: Sequence[DagNode], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Longest path from the roots; then whatever has room moves right, next to what needs it."""
    needs: dict[str, list[str]] = {node.name: [] for node in nodes}
    wanted: dict[str, list[str]] = {node.name: [] for node in nodes}
    for a, b in edges:
        needs[b].append(a)
        wanted[a].append(b)
    column = dict.fromkeys(needs, 0)
    pending = {name: len(direct) for name, direct in needs.items()}
    ready = [name for name, count in pending.items() if count == 0]
    order = []
    while ready:
        name = ready.pop(0)
        order.append(name)
        for other in wanted[name]:
            column[other] = max(column[other], column[name] + 1)
            pending[other] -= 1
            if pending[other] == 0:
                ready.append(other)
    for name in reversed(order):
        if wanted[name] and needs[name] == []:
            column[name] = min(column[other] for other in wanted[name]) - 1
    return column


def _chain(a: _Slot, b: _Slot, first: int, last: int, columns: list[list[_Slot]]) -> list[_Slot]:
    """The slots an edge runs through, lanes added to the columns between."""
    lanes = [_Slot("", _LANE) for _ in range(first + 1, last)]
    for lane, column in zip(lanes, columns[first + 1 : last], strict=True):
        column.append(lane)
    chain = [a, *lanes, b]
    for left, right in pairwise(chain):
        left.right.append(right)
        right.left.append(left)
    return chain


def _order(columns: Sequence[list[_Slot]], *, forward: bool) -> None:
    """Sort every column by the mean place of its neighbours in the one before."""
    for before, column in pairwise(columns):
        place = {id(slot): index for index, slot in enumerate(before)}
        own = {id(slot): index for index, slot in enumerate(column)}

        def key(slot: _Slot, place: dict[int, int] = place, own: dict[int, int] = own) -> float:
            near = [
                place[id(other)] for other in (slot.left if forward else slot.right) if id(other) in place
            ]
            return sum(near) / len(near) if near else float(own[id(slot)])

        column.sort(key=key)


def _pull(slot: _Slot) -> float:
    near = [*slot.left, *slot.right]
    return sum(other.centre for other in near) / len(near) if near else slot.centre


def _spread(column: Sequence[_Slot], wanted: Sequence[float]) -> None:
    """Centres as near as possible to `wanted` (least squares), in order and without overlap: pool adjacent violators."""
    offsets, total = [], 0.0
    for index, slot in enumerate(column):
        if index:
            total += (column[index - 1].height + slot.height) / 2 + _GAP
        offsets.append(total)
    blocks: list[tuple[float, int]] = []
    for target, offset in zip(wanted, offsets, strict=True):
        blocks.append((target - offset, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (low, n), (high, m) = blocks[-2], blocks[-1]
            blocks[-2:] = [((low * n + high * m) / (n + m), n + m)]
    level = [mean for mean, count in blocks for _ in range(count)]
    for slot, base, offset in zip(column, level, offsets, strict=True):
        slot.centre = base + offset


def _path(
    chain: Sequence[_Slot], first: int, ends: Sequence[tuple[float, float]]
) -> tuple[str, float, float]:
    """A curve from box to box, straight through the columns it passes, and its end."""
    x = y = 0.0
    commands = [f"M{ends[first][1]:.1f} {chain[0].centre:.1f}"]
    for index, (a, b) in enumerate(pairwise(chain)):
        start, stop = ends[first + index][1], ends[first + index + 1][0]
        x, y = stop, b.centre
        stop -= 5.0 if b.name else 0.0  # the head covers the rest
        middle = (start + stop) / 2
        commands.append(f"C{middle:.1f} {a.centre:.1f} {middle:.1f} {b.centre:.1f} {stop:.1f} {b.centre:.1f}")
        if not b.name:
            commands.append(f"H{ends[first + index + 1][1]:.1f}")
    return "".join(commands), x, y

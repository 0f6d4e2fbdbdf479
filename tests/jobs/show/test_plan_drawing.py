"""The drawing of a DAG: every node and edge once, from left to right, and nothing unescaped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from jobs.show.plan_drawing import graph_html, graph_svg, graph_text
from jobs.show.report.dag_drawing import DagNode

NODES = [
    DagNode(name="a", state="done"),
    DagNode(name="b", state="to run", needs=("a",)),
    DagNode(name="c", state="running", needs=("a",)),
    DagNode(name="d", state="to run", needs=("b",), after=("c",)),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_what_is_only_followed_is_dashed() -> None:
    svg = ElementTree.fromstring(graph_svg(NODES))
    assert [path.attrib["class"] for path in svg.iter(f"{SVG}path")].count("edge after") == 1


def test_what_is_needed_is_drawn_though_it_also_comes_after() -> None:
    stage1, stage2 = DagNode(name="stage1"), DagNode(name="stage2", needs=("stage1",), after=("stage1-eval",))
    svg = graph_svg([stage1, DagNode(name="stage1-eval", needs=("stage1",)), stage2])
    drawn = [path.attrib["class"] for path in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    assert (drawn.count("edge"), drawn.count("edge after")) == (2, 1)


def test_the_text_names_states_and_edges() -> None:
    assert graph_text(NODES).splitlines() == [
        "a      done",
        "  b    to run     <- a",
        "  c    running    <- a",
        "    d  to run     <- b, (c)",
    ]


def test_names_cannot_leave_their_place_in_the_page() -> None:
    wicked = '</text><script>alert("x")</script>'
    page = graph_html([DagNode(name="a", state='x" onload="y', detail=wicked)], wicked)
    assert "<script>" not in page and 'onload="y' not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "no external asset"


@given(st.data())
def test_every_step_is_one_line_below_all_that_it_hangs_on(data: st.DataObject) -> None:
    nodes: list[DagNode] = []
    for i in range(data.draw(st.integers(0, 9))):
        needs = tuple(node.name for node in nodes if data.draw(st.integers(0, 2)) == 0)
        nodes.append(DagNode(name=f"n{i}", state="to run", needs=needs))
    lines = [line.split()[0] for line in graph_text(nodes).splitlines()]
    assert sorted(lines) == sorted(node.name for node in nodes)
    assert all(lines.index(need) < lines.index(node.name) for node in nodes for need in node.needs)

"""The drawing of a DAG: every node and edge once, from left to right, and nothing unescaped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.show.plan_drawing import Node, graph_html, graph_svg, graph_text, layers

NODES = [
    Node(name="a", state="done"),
    Node(name="b", state="to run", needs=("a",)),
    Node(name="c", state="running", needs=("a",)),
    Node(name="d", state="to run", needs=("b",), after=("c",)),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_node_lies_right_of_all_that_it_hangs_on() -> None:
    assert [[node.name for node in layer] for layer in layers(NODES)] == [["a"], ["b", "c"], ["d"]]


def test_the_text_names_states_and_edges() -> None:
    assert graph_text(NODES).splitlines() == [
        "a      done",
        "  b    to run     <- a",
        "  c    running    <- a",
        "    d  to run     <- b, (c)",
    ]


def test_names_cannot_leave_their_place_in_the_page() -> None:
    wicked = '</text><script>alert("x")</script>'
    page = graph_html([Node(name="a", state='x" onload="y', detail=wicked)], wicked)
    assert "<script>" not in page and 'onload="y' not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "no external asset"


@settings(max_examples=25)
@given(st.data())
def test_every_graph_is_drawn_whole_and_without_overlap(data: st.DataObject) -> None:
    nodes: list[Node] = []
    for i in range(data.draw(st.integers(0, 9))):
        needs = tuple(node.name for node in nodes if data.draw(st.integers(0, 2)) == 0)
        nodes.append(Node(name=f"n{i}", state="to run", needs=needs))
    svg = ElementTree.fromstring(graph_svg(nodes))
    boxes = [(float(r.attrib["x"]), float(r.attrib["y"])) for r in svg.iter(f"{SVG}rect")]
    assert len(boxes) == len(set(boxes)) == len(nodes)
    assert len(list(svg.iter(f"{SVG}path"))) == sum(len(node.needs) for node in nodes)
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    assert all(0 <= x < width and 0 <= y < height for x, y in boxes)
    assert len(graph_text(nodes).splitlines()) == len(nodes)

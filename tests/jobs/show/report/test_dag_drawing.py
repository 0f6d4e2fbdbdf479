"""The drawing of a DAG: every step once, right of what it needs, no box on another, whatever the names."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.show.report.dag_drawing import COLLAPSE_OVER, DagNode, draw_dag

DEMO = (
    DagNode(name="tokenizer", state="done"),
    DagNode(name="shards-prose", needs=("tokenizer",), state="done"),
    DagNode(name="shards-code", needs=("tokenizer",), state="done"),
    DagNode(name="stage1", needs=("shards-prose", "shards-code"), state="running", note="67 %"),
    DagNode(name="stage1-eval", needs=("stage1", "shards-prose", "shards-code")),
    DagNode(name="stage2", needs=("stage1", "shards-prose", "shards-code")),
    DagNode(name="report", needs=("stage1", "stage2")),
)


def boxes(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """Title's name -> x, y, width, height."""
    found = {}
    for group in ElementTree.fromstring(svg).iter("g"):
        rect, title = group.find("rect"), group.find("title")
        assert rect is not None and title is not None and title.text is not None
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        found[title.text.partition(":")[0]] = (x, y, width, height)
    return found


def paths(svg: str) -> int:
    return len(re.findall('<path class="edge"', svg))


def test_every_step_is_drawn_once_and_right_of_what_it_needs() -> None:
    found = boxes(draw_dag(DEMO))
    assert set(found) == {node.name for node in DEMO}
    for node in DEMO:
        for need in node.needs:
            assert found[need][0] + found[need][2] < found[node.name][0]


def test_edges_that_follow_from_others_are_left_out() -> None:
    assert (
        paths(draw_dag(DEMO)) == 7
    )  # 2 to the shards, 2 to stage1, stage1 to its evaluation and stage2, report


def test_a_crowd_of_like_steps_is_one_box() -> None:
    sources = [DagNode(name=f"shards-{n}", state="done" if n else "failed") for n in range(40)]
    stage = DagNode(name="stage1", needs=tuple(node.name for node in sources))
    svg = draw_dag([*sources, stage])
    assert set(boxes(svg)) == {"shards-* x 40", "stage1"} and paths(svg) == 1
    assert "1 failed, 39 of 40 done" in svg and 'class="node failed"' in svg
    assert len(boxes(draw_dag([*sources[:COLLAPSE_OVER], stage]))) == COLLAPSE_OVER + 1


def test_names_are_escaped_and_long_ones_cut() -> None:
    svg = draw_dag([DagNode(name="<script>&\"'", note="<b>", state="<i>"), DagNode(name="n" * 99)])
    assert "<script>" not in svg and "<b>" not in svg and "<i>" not in svg
    ElementTree.fromstring(svg)
    assert "n" * 30 not in re.sub("<title>.*?</title>", "", svg)


def test_a_standalone_drawing_is_a_file_of_its_own() -> None:
    svg = draw_dag(DEMO, standalone=True)
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and "<style>" in svg
    ElementTree.fromstring(svg)
    assert draw_dag([]) == ""


def test_cycles_and_repeated_names_are_refused() -> None:
    with pytest.raises(ValueError, match="needs itself"):
        draw_dag([DagNode(name="a", needs=("b",)), DagNode(name="b", needs=("a",))])
    with pytest.raises(ValueError, match="used twice"):
        draw_dag([DagNode(name="a"), DagNode(name="a")])


@given(st.lists(st.sets(st.integers(0, 11), max_size=4), min_size=1, max_size=12))
def test_no_two_boxes_overlap_and_every_edge_points_right(needs: list[set[int]]) -> None:
    nodes = [
        DagNode(name=f"{chr(97 + index)}", needs=tuple(chr(97 + n) for n in sorted(direct) if n < index))
        for index, direct in enumerate(needs)
    ]
    svg = draw_dag(nodes)
    found = boxes(svg)
    root = ElementTree.fromstring(svg)
    for (x, y, w, h), (u, v, m, n) in itertools.combinations(found.values(), 2):
        assert x + w <= u or u + m <= x or y + h <= v or v + n <= y
    for x, y, w, h in found.values():
        assert x >= 0 and y >= 0
        assert x + w <= float(root.attrib["width"]) and y + h <= float(root.attrib["height"])
    if len(found) == len(nodes):
        assert all(
            found[need][0] + found[need][2] < found[node.name][0] for node in nodes for need in node.needs
        )

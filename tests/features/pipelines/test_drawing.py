"""The diagram of a pipeline: every step and await step is there, as text and as SVG."""

from __future__ import annotations

from datetime import timedelta
from xml.etree import ElementTree as ET

from stepwell.pipelines import Pipeline, await_, one_to_one
from tests.features.pipelines.examples import Item, Priced, count, double, itemized, plain, total

SVG = "{http://www.w3.org/2000/svg}"


def texts(pipeline: Pipeline) -> list[str]:
    return [text.text or "" for text in ET.fromstring(pipeline.svg()).iter(f"{SVG}text")]  # noqa: S314 - our own


def test_the_text_shows_segments_await_steps_and_the_steps_of_each_reply() -> None:
    assert itemized.diagram() == """\
itemized, version 1, queue default

    │ Numbers
    ▼
┌─ segment 0 ────────────────────────────┐
│ count          ONE_TO_MANY             │
│ double         ONE_TO_ONE              │
└────────────────────────────────────────┘
    ┃ many: Item
    ▼
╔═ asks about each, at most 3 at a time ═╗
║ Ask prices     ONE_TO_ONE              ║
║ over           manual                  ║
╚════════════════════════════════════════╝
    ┃ many: Priced
    ▼
┌╌ each reply by itself ╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┐
╎ cheaper        ONE_TO_ONE              ╎
╎ twice_if_odd   ONE_TO_MANY             ╎
└╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┘
    ┃ many: Priced, in the order of the items
    ▼
┌─ segment 1 ────────────────────────────┐
│ numbered       MANY_TO_MANY            │
└────────────────────────────────────────┘
    ┃ many: list[int]
    ▼
"""


def test_an_await_step_is_drawn_with_its_reply_type() -> None:
    ask = await_("Ask", over="bank", input=Item, output=Priced, cardinality="MANY_TO_ONE", token=True, group="finance",
                 timeout=timedelta(days=1, hours=2, seconds=3), idempotency=("number",), shared=True)  # fmt: skip

    drawn = Pipeline("p", [count, ask], version=7, queue="slow").diagram()

    for shown in ("p, version 7, queue slow", "asks about all at once", "bank", "1 d 2 h 3 s", "number, shared",
                  "with a signed token", "finance"):  # fmt: skip
        assert shown in drawn


def test_error_handling_is_drawn_if_it_is_not_the_default() -> None:
    once = one_to_one(double.function, name="once", retries=0, on_error="reject")

    assert "ONE_TO_ONE, no retries, rejects" in Pipeline("p", [once]).diagram()
    assert "retries" not in plain.diagram()


def test_the_svg_shows_all_that_the_text_shows() -> None:
    shown = texts(itemized)

    for name in ("count", "double", "Ask prices", "cheaper", "twice_if_odd", "numbered", "many: list[int]"):
        assert name in shown


def test_the_svg_keeps_text_within_frames_and_frames_within_its_bounds() -> None:
    root = ET.fromstring(itemized.svg())  # noqa: S314 - our own
    width, height = float(root.attrib["width"]), float(root.attrib["height"])

    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) < width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) < height
    for text in root.iter(f"{SVG}text"):
        assert float(text.attrib["x"]) + 7.3 * len(text.text or "") < width
        assert float(text.attrib["y"]) < height


def test_names_are_drawn_unchanged_and_cannot_become_markup() -> None:
    odd = one_to_one(double.function, name="<script>&\"'")
    wide = await_("</text>", over="<b>", input=Item, output=Priced)

    shown = texts(Pipeline("a <b> & c", [odd, wide]))

    assert {"a <b> & c, version 1, queue default", "<script>&\"'", "</text>", "<b>"} <= set(shown)


def test_the_svg_uses_the_colour_of_the_page_and_does_not_change_the_page() -> None:
    svg = Pipeline("p", [count, total]).svg()
    style = svg[svg.index("<style>") : svg.index("</style>")]

    rules = [line for line in style.splitlines()[1:] if not line.startswith("@media")]
    assert "currentColor" in style
    assert all(".stepwell-pipeline" in rule.partition("{")[0] for rule in rules)
    assert "prefers-color-scheme: dark" in style

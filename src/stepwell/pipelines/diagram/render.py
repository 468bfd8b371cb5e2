"""Draws the diagram of a pipeline: as text for a terminal, as SVG for a page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Final

from stepwell.pipelines.diagram.layout import Card, Drawn, Flow, Kind, cards, heading

if TYPE_CHECKING:
    from stepwell.pipelines.pipeline import Pipeline

_CORNERS: Final = {
    Kind.SEGMENT: ("┌", "─", "┐", "│", "└", "┘"), Kind.AWAIT: ("╔", "═", "╗", "║", "╚", "╝"),
    Kind.ITEM: ("┌", "╌", "┐", "╎", "└", "┘"),
}  # fmt: skip

LETTER: Final = 7.3  # the width of one letter, in px, at 12 px and in a font of one width
LINE: Final = 20
PAD: Final = 14
GAP: Final = 46  # between two cards
_CLASS: Final = "stepwell-pipeline"  # the style of a drawing inside a page must not colour the rest of it
_STYLE: Final = f"""\
svg.{_CLASS}:root {{ color: #1f2328 }}
@media (prefers-color-scheme: dark) {{ svg.{_CLASS}:root {{ color: #e6edf3 }} }}
.{_CLASS} text {{ font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }}
.{_CLASS} text {{ fill: currentColor }}
.{_CLASS} text.heading {{ font-size: 14px; font-weight: 600 }}
.{_CLASS} text.name {{ font-weight: 600 }}
.{_CLASS} .title, .{_CLASS} .fact, .{_CLASS} .flow {{ opacity: .72 }}
.{_CLASS} rect {{ fill: currentColor; fill-opacity: .04; stroke: currentColor; stroke-width: 1.2 }}
.{_CLASS} .await rect {{ fill-opacity: .1; stroke-width: 2.4 }}
.{_CLASS} .item rect {{ stroke-dasharray: 5 4 }}
.{_CLASS} path {{ stroke: currentColor; fill: none; stroke-width: 1.4 }}
.{_CLASS} path.head {{ fill: currentColor; stroke: none }}"""


def draw_text(pipeline: Pipeline) -> str:
    """The diagram for a terminal; lines end with \\n."""
    drawn = cards(pipeline)
    name_width, width = _widths(drawn)
    lines = [heading(pipeline), ""]
    for one in drawn:
        lines += _text_card(one, name_width, width) if isinstance(one, Card) else _text_flow(one)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _widths(drawn: list[Drawn]) -> tuple[int, int]:
    """The width of the names, and the width inside the frames."""
    found = [one for one in drawn if isinstance(one, Card)]
    names = max(len(name) for card in found for name, _ in card.rows)
    facts = max(len(fact) for card in found for _, fact in card.rows)
    return names, max(names + 3 + facts, *(len(card.title) + 2 for card in found))


def _text_card(card: Card, name_width: int, width: int) -> Iterator[str]:
    left, line, right, side, low_left, low_right = _CORNERS[card.kind]
    yield f"{left}{line} {card.title} ".ljust(width + 3, line) + right
    for name, fact in card.rows:
        yield f"{side} {name.ljust(name_width)}   {fact}".ljust(width + 3) + side
    yield low_left + line * (width + 2) + low_right


def _text_flow(flow: Flow) -> Iterator[str]:
    many = "┃ many: " if flow.is_many else "│ "
    yield f"    {many}{flow.label}"
    yield "    ▼"


def draw_svg(pipeline: Pipeline) -> str:
    """The diagram as one SVG element: in the colour of the text around it, or by itself in light and dark."""
    drawn = cards(pipeline)
    name_width, inner = _widths(drawn)
    longest = max(len(flow.label) + 8 for flow in drawn if isinstance(flow, Flow))
    width = round(max(inner * LETTER + 2 * PAD, longest * LETTER + 80, len(heading(pipeline)) * 8.6) + 2 * PAD)
    shapes, y = [], PAD + 18.0
    shapes.append(f'<text class="heading" x="{PAD}" y="{y - 4:g}">{escape(heading(pipeline))}</text>')
    y += 8
    for one in drawn:
        if isinstance(one, Card):
            shapes.append(_svg_card(one, y, width - 2 * PAD, name_width))
            y += _height(one)
        else:
            shapes.append(_svg_flow(one, y))
            y += GAP
    title, height = escape(heading(pipeline)), round(y + PAD)
    opening = (f'<svg xmlns="http://www.w3.org/2000/svg" class="{_CLASS}" viewBox="0 0 {width} {height}" '
               f'width="{width}" height="{height}" role="img" aria-label="{title}">')  # fmt: skip
    return "\n".join([opening, f"<title>{title}</title>", f"<style>\n{_STYLE}\n</style>", *shapes, "</svg>", ""])


def _height(card: Card) -> int:
    return PAD + LINE * (len(card.rows) + 1)


def _svg_card(card: Card, y: float, width: float, name_width: int) -> str:
    height, x = _height(card), PAD * 2
    lines = [f'<g class="{card.kind}">', f'<rect x="{PAD}" y="{y:g}" width="{width:g}" height="{height}" rx="6"/>',
             f'<text class="title" x="{x}" y="{y + 18:g}">{escape(card.title)}</text>']  # fmt: skip
    for number, (name, fact) in enumerate(card.rows):
        at = y + 18 + LINE * (number + 1)
        is_term = card.kind is Kind.AWAIT and number > 0
        lines.append(f'<text class="{"fact" if is_term else "name"}" x="{x}" y="{at:g}">{escape(name)}</text>')
        lines.append(f'<text class="fact" x="{x + (name_width + 3) * LETTER:g}" y="{at:g}">{escape(fact)}</text>')
    return "\n".join([*lines, "</g>"])


def _svg_flow(flow: Flow, y: float) -> str:
    """One line for one value, two for a stream."""
    x, end = PAD * 3, y + GAP - 3
    strokes = (x - 2.5, x + 2.5) if flow.is_many else (x,)
    lines = "".join(f'<path d="M{at:g} {y + 3:g}V{end - 7:g}"/>' for at in strokes)
    head = f'<path class="head" d="M{x - 6:g} {end - 8:g}h12l-6 8z"/>'
    label = f"many: {flow.label}" if flow.is_many else flow.label
    return f'{lines}{head}\n<text class="flow" x="{x + 16}" y="{y + GAP / 2 + 4:g}">{escape(label)}</text>'

"""A plan as an SVG picture: hosts, what runs on them, and who talks to whom.

Made from the plan alone, so the same plan gives the same bytes. The picture brings its own background and names no
font: it reads the same in light and dark viewers, and on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import PurePath

from fleet import picture_text as words
from fleet.picture_flows import KINDS, Flow, FlowKind, flows
from fleet.picture_layout import MARGIN, PAD, STEP, Box, Cell, Frame, Layout, lay_out, unit_lines
from fleet.picture_lines import STYLES, Lines, styles, tag_svg
from fleet.topology import Plan, Unit

_STYLE = """\
text { fill: #1f2328; font-family: Helvetica, Arial, 'DejaVu Sans', sans-serif; font-size: 12px }
.title { font-size: 15px; font-weight: bold } .name { font-size: 13px; font-weight: bold } .more { fill: #424a53 }
.end { text-anchor: end } .letter { fill: #fff; font-size: 9.5px; font-weight: bold; text-anchor: middle }
.paper { fill: #fff; stroke: #d0d7de }
.host { fill: #f6f8fa; stroke: #57606a } .unit { fill: #fff; stroke: #8c959f } .way { fill: #fff8c5; stroke: #7d6b00 }
.clients { fill: #1f2328 } .on-dark { fill: #fff; text-anchor: middle; font-weight: bold }
.instance { fill: #eaeef2; stroke: #1f2328; stroke-width: 2.5 }
.set { fill: #fff; stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 3 3 }
.line { fill: none }"""
_TOP = 7 * STEP


def draw(plan: Plan, *beside: Plan) -> str:
    """The picture of a plan. Services ``beside`` it, each on one of its hosts, are drawn into that host."""
    plans = (plan, *beside)
    found = [flow for p in plans for flow in flows(p)]
    layout = lay_out(plans, found, _TOP)
    width = layout.width
    clients = Box(MARGIN, 3.5 * STEP, width - 2 * MARGIN, 1.5 * STEP)
    lines = Lines(layout, clients)
    for flow in found:
        lines.add(flow)
    kinds = [kind for kind in KINDS if any(flow.kind == kind for flow in found)]
    legend, height = _legend(layout, kinds)
    placed = [(p, u, layout.units[u.at]) for cell, _ in layout.hosts for p, u in cell.units]
    body = [
        *_title(plans, width),
        f'<rect class="clients" {_at(clients)} rx="12"/>',
        f'<text class="on-dark" x="{_n(width / 2)}" y="{_n(clients.y + 16)}">clients</text>',
        *(line for frame, box in layout.frames for line in _frame(frame, box, layout)),
        *(line for cell, box in layout.hosts for line in _host(plan, cell, box)),
        *(line for p, unit, box in placed for line in _unit(p, unit, box, with_service=bool(beside))),
        *lines.svg(),
        *legend,
    ]
    return "\n".join([*_head(plans, found, kinds, width, height), *body, "</svg>"]) + "\n"


def _head(
    plans: Sequence[Plan], found: Sequence[Flow], kinds: Sequence[FlowKind], width: float, height: float
) -> list[str]:
    size = f"{_n(width)} {_n(height)}"
    spoken = "; ".join(f"{STYLES[k].name}: {STYLES[k].meaning}" for k in kinds)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{_n(width)}" height="{_n(height)}"'
        ' role="img" aria-labelledby="what how">',
        f'<title id="what">{escape("; ".join(map(words.title, plans)))}</title>',
        f'<desc id="how">{escape(spoken)}</desc>',
        f"<style>\n{_STYLE}",
        *styles(kinds),
        "</style>",
        f'<rect class="paper" {_at(Box(0.5, 0.5, width - 1, height - 1))} rx="8"/>',
    ]


def _title(plans: Sequence[Plan], width: float) -> list[str]:
    room = width - 2 * MARGIN
    files = ", ".join(PurePath(p.fleet.source).name for p in plans)
    if len(plans) == 1:
        what = f": {words.title(plans[0])}"
        name = plans[0].served_name.rpartition("/")[2]
        served = words.fit(name, room - words.width(what, 15, bold=True), 15, bold=True) + what
        sources = f"{files} with {plans[0].fleet.recipe}"
    else:
        served, sources = f"services {' and '.join(p.fleet.settings.service for p in plans)} on one host", files
    return [
        _text(words.fit(served, room, 15, bold=True), MARGIN, 27, "title"),
        _text(words.fit(sources, room, words.SMALL), MARGIN, 45, "more"),
    ]


def _frame(frame: Frame, box: Box, layout: Layout) -> list[str]:
    """Label and note lie over the columns, beside the lines between them."""
    x = min(b.x for _, b in layout.hosts)
    lines = [
        f'<rect class="{frame.kind}" {_at(box)} rx="10"/>',
        _text(words.fit(frame.label, layout.host_width, words.BIG, bold=True), x, box.y + 20, "name"),
    ]
    if frame.note:
        end = max(b.right for _, b in layout.hosts)
        lines.append(_text(words.fit(frame.note, layout.host_width, words.SMALL), end, box.y + 20, "more end"))
    return lines


def _host(plan: Plan, cell: Cell, box: Box) -> list[str]:
    node = cell.node
    lines = [f'<rect class="host" {_at(box)} rx="6"><title>{escape(f"{node.name}, {node.address}")}</title></rect>']
    for n, (left, right) in enumerate(words.host_lines(plan, node, box.w - 2 * PAD)):
        y = box.y + 20 + STEP * n
        lines.append(_text(left, box.x + PAD, y, "more" if n else "name"))
        if right:
            lines.append(_text(right, box.right - PAD, y, "more end"))
    return lines


def _unit(plan: Plan, unit: Unit, box: Box, with_service: bool) -> list[str]:
    x, room = box.x + PAD, box.w - 2 * PAD
    name = words.short_name(plan, unit, with_service)
    duty = f": {words.duty(plan, unit)}"
    name = words.fit(name, room - words.width(duty, words.BIG), words.BIG, bold=True)
    kind = "unit" if unit.serves_model else "way"
    first = f'<text x="{_n(x)}" y="{_n(box.y + 18)}" style="font-size:13px">'
    first += f'<tspan font-weight="bold">{escape(name)}</tspan>{escape(duty)}</text>'
    lines = [f'<rect class="{kind}" {_at(box)} rx="4"><title>{escape(unit.at)}</title></rect>', first]
    for n, line in enumerate(unit_lines(plan, unit, room)):
        lines.append(_text(line, x, box.y + 18 + STEP * (n + 1), "more"))
    return lines


def _legend(layout: Layout, kinds: Sequence[FlowKind]) -> tuple[list[str], float]:
    """The kinds of lines that occur, and the height of the whole picture."""
    x, y, drawn = MARGIN, layout.bottom + STEP, []
    for kind in kinds:
        style = STYLES[kind]
        start = x + 7 if style.mutual else x
        drawn.append(f'<path class="line {kind}" d="M{_n(start)},{_n(y - 4)} H{_n(x + 45)}"/>')
        drawn.append(f'<path class="tip {kind}" d="M{_n(x + 52)},{_n(y - 4)} l-8,-4 v8 z"/>')
        drawn += [f'<path class="tip {kind}" d="M{_n(x)},{_n(y - 4)} l8,-4 v8 z"/>'] * style.mutual
        drawn += tag_svg(kind, x + 26, y - 4)
        room = layout.width - x - 64 - MARGIN
        drawn.append(_text(words.fit(f"{style.name}: {style.meaning}", room, words.SMALL), x + 64, y, "more"))
        y += 1.25 * STEP
    return drawn, y - 4


def _text(words_: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}">{escape(words_)}</text>'


def _at(box: Box) -> str:
    return f'x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.w)}" height="{_n(box.h)}"'


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")

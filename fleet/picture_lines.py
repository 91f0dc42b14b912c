"""The arrows of a picture: each kind runs along a line of its own, from which it branches into units.

A dot is where a branch joins its line; where lines only cross there is none. The first one carries the kind's letter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.picture_flows import CLIENTS, KINDS, Flow, FlowKind
from fleet.picture_layout import INSET, STEP, Box, Layout

# Heights of the branches below a unit's top; different by a part of STEP, so that no two kinds meet.
_BRANCH: dict[FlowKind, float] = {kind: 12.0 + 12 * n for n, kind in enumerate(KINDS)}
_OUT, _IN = 28.0, 40.0
_HEAD, _HALF = 8.0, 4.0


@dataclass(frozen=True)
class Style:
    letter: str
    name: str
    meaning: str
    colour: str
    stroke: str  # width;dashes
    mutual: bool = False


STYLES: dict[FlowKind, Style] = {
    "requests": Style("R", "requests", "from clients to an instance", "#1f2328", "1.6"),
    "kv": Style("K", "key-value transfer", "from prefill to decode", "#0550ae", "3.2"),
    "rpc": Style("D", "data-parallel RPC", "from the head to ranks without an API", "#8250df", "1.8;8 4"),
    "ray": Style("Y", "Ray", "its head and its workers", "#9a3412", "1.8;10 3 2 3", mutual=True),
    "watch": Style("W", "mutual watch", "that all hosts of an instance live", "#116329", "2;2 3", mutual=True),
}


class Lines:
    """Collects the drawing of all flows; marks lie above all lines."""

    def __init__(self, layout: Layout, clients: Box) -> None:
        self.layout, self.clients = layout, clients
        self.paths: list[str] = []
        self.marks: list[str] = []

    def add(self, flow: Flow) -> None:
        if flow.route == "down":
            self._down(flow)
        elif flow.route == "between":
            self._between(flow)
        elif flow.sources == (CLIENTS,):
            self._from_clients(flow)
        else:
            self._round(flow)

    def svg(self) -> list[str]:
        return self.paths + self.marks

    def _down(self, flow: Flow) -> None:
        upper, lower = self.layout.units[flow.sources[0]], self.layout.units[flow.targets[0]]
        x = upper.x + upper.w / 2
        self._path("requests", f"M{_n(x)},{_n(upper.bottom)} V{_n(lower.y - _HEAD + 1)}")
        self.marks.append(
            f'<path class="tip requests" d="M{_n(x)},{_n(lower.y)} l-{_n(_HALF)},-{_n(_HEAD)} h{_n(2 * _HALF)} z"/>'
        )

    def _between(self, flow: Flow) -> None:
        """Along the line between the columns."""
        x, height = self.layout.between[flow.kind], _BRANCH[flow.kind]
        ys = []
        for at in (*flow.sources, *flow.targets):
            box = self.layout.units[at]
            edge = box.right if self.layout.is_left[at] else box.x
            ys.append(box.y + height)
            self._branch(flow.kind, x, edge, ys[-1], arrow=STYLES[flow.kind].mutual or at in flow.targets)
        self._line(flow.kind, x, ys)

    def _from_clients(self, flow: Flow) -> None:
        """From the clients down beside the hosts, left or right."""
        for is_left in (True, False):
            targets = [at for at in flow.targets if self.layout.is_left[at] == is_left]
            if not targets:
                continue
            x = self._outside(is_left, STEP)
            ys = [self.clients.bottom]
            for at in targets:
                ys.append(self._to_outside(at, x, _BRANCH["requests"], arrow=True))
            self._line("requests", x, ys, tagged_at=self.clients.bottom + 0.75 * STEP)

    def _round(self, flow: Flow) -> None:
        """Outside of everything, on both sides where there are units on both, joined below the clients."""
        joint = self.clients.bottom + 1.5 * STEP
        ends: dict[bool, list[float]] = {}
        for at in (*flow.sources, *flow.targets):
            is_left, arrow = self.layout.is_left[at], at in flow.targets
            x = self._outside(is_left, 2 * STEP)
            ends.setdefault(is_left, []).append(self._to_outside(at, x, _IN if arrow else _OUT, arrow))
        if len(ends) == 2:
            left, right = (self._outside(side, 2 * STEP) for side in (True, False))
            self._path("requests", f"M{_n(left)},{_n(joint)} H{_n(right)}")
            self.marks += tag_svg("requests", self.layout.width / 2, joint)
        for is_left, ys in ends.items():
            both = [joint] if len(ends) == 2 else []
            self._line("requests", self._outside(is_left, 2 * STEP), both + ys, tagged=not both)

    def _outside(self, is_left: bool, distance: float) -> float:
        """Beside all frames."""
        frames = [box for _, box in self.layout.frames] + [box for _, box in self.layout.hosts]
        if is_left:
            return min(box.x for box in frames) - distance + INSET / 2
        return max(box.right for box in frames) + distance - INSET / 2

    def _to_outside(self, at: str, x: float, height: float, arrow: bool) -> float:
        box = self.layout.units[at]
        edge = box.x if self.layout.is_left[at] else box.right
        self._branch("requests", x, edge, box.y + height, arrow)
        return box.y + height

    def _branch(self, kind: FlowKind, x: float, edge: float, y: float, arrow: bool) -> None:
        towards = 1 if edge > x else -1
        end = edge - towards * (_HEAD - 1) if arrow else edge
        self._path(kind, f"M{_n(x)},{_n(y)} H{_n(end)}")
        if arrow:
            back = f"l{_n(-towards * _HEAD)},-{_n(_HALF)} v{_n(2 * _HALF)} z"
            self.marks.append(f'<path class="tip {kind}" d="M{_n(edge)},{_n(y)} {back}"/>')

    def _line(
        self, kind: FlowKind, x: float, ys: list[float], tagged_at: float | None = None, tagged: bool = True
    ) -> None:
        """The line itself, with a dot at each branch and the letter at the first."""
        if min(ys) < max(ys):
            self._path(kind, f"M{_n(x)},{_n(min(ys))} V{_n(max(ys))}")
        tag = ys[0] if tagged_at is None else tagged_at
        radius = "4.5" if kind == "kv" else "3"
        for y in sorted(set(ys) - {tag, max(ys), min(ys)}):
            self.marks.append(f'<circle class="tip {kind}" cx="{_n(x)}" cy="{_n(y)}" r="{radius}"/>')
        self.marks += tag_svg(kind, x, tag) * tagged

    def _path(self, kind: FlowKind, d: str) -> None:
        self.paths.append(f'<path class="line {kind}" d="{d}"/>')


def tag_svg(kind: FlowKind, x: float, y: float) -> list[str]:
    """The letter of a kind in a circle."""
    return [
        f'<circle class="tag {kind}" cx="{_n(x)}" cy="{_n(y)}" r="6.5"/>',
        f'<text class="letter" x="{_n(x)}" y="{_n(y + 3.4)}">{STYLES[kind].letter}</text>',
    ]


def styles(kinds: Iterable[FlowKind]) -> list[str]:
    """The rules of the lines that occur."""
    rules = []
    for kind in kinds:
        style = STYLES[kind]
        stroke, _, dashes = style.stroke.partition(";")
        dashed = f" stroke-dasharray: {dashes};" if dashes else ""
        rules.append(f".line.{kind} {{ stroke: {style.colour}; stroke-width: {stroke};{dashed} }}")
        rules.append(f".tip.{kind}, .tag.{kind} {{ fill: {style.colour} }}")
    return rules


def _n(number: float) -> str:
    """The same digits everywhere."""
    return f"{number:.1f}".removesuffix(".0")

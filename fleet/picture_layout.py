"""Where everything of a picture lies: two columns of hosts, frames round those that belong together.

All heights are multiples of ``STEP``, and each kind of line leaves its unit at a height of its own within it: so lines
of different kinds never lie on each other, whatever stands in the two columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fleet import picture_text as words
from fleet.inventory import Node
from fleet.picture_flows import CLIENTS, KINDS, Flow, FlowKind
from fleet.topology import Instance, Plan, Set, Unit

STEP = 16
MARGIN = 16
PAD = 8  # between a host's border and its units, and between a unit's border and its words
INSET = 12  # of a frame round what is in it
# A host that is alone, and one of two columns, which grows for long names and addresses.
WIDE, NARROW, WIDEST = 400, 240, 300


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        return self.x + self.w

    @property
    def bottom(self) -> float:
        return self.y + self.h


@dataclass(frozen=True)
class Cell:
    """One host with its units: those that requests meet first on top."""

    node: Node
    units: tuple[tuple[Plan, Unit], ...]


@dataclass(frozen=True)
class Row:
    left: Cell | None
    right: Cell | None = None


@dataclass(frozen=True)
class Frame:
    """What is framed as one: the hosts of an instance, or of a set."""

    kind: Literal["instance", "set"]
    label: str
    note: str
    blocks: tuple[Row | Frame, ...]


@dataclass
class Layout:
    width: float = 0
    bottom: float = 0
    host_width: float = NARROW
    header: float = STEP * 3
    hosts: list[tuple[Cell, Box]] = field(default_factory=list)
    units: dict[str, Box] = field(default_factory=dict)
    frames: list[tuple[Frame, Box]] = field(default_factory=list)
    # The column of each unit, and where the lines of each kind run.
    is_left: dict[str, bool] = field(default_factory=dict)
    between: dict[FlowKind, float] = field(default_factory=dict)


def lay_out(plans: Sequence[Plan], flows: Sequence[Flow], top: float) -> Layout:
    """Place all hosts below ``top``."""
    blocks = _blocks(plans)
    kinds = [k for k in KINDS if any(f.kind == k and f.route == "between" for f in flows)]
    made = Layout()
    two = any(row.right for row in _rows(blocks))
    plan, nodes = plans[0], plans[0].fleet.nodes
    needed = min(max(map(words.host_room, nodes)) + 2 * PAD, WIDEST)
    made.host_width = max(NARROW, needed) if two or kinds else WIDE
    made.header = STEP * (1 + max(len(words.host_lines(plan, n, made.host_width - 2 * PAD)) for n in nodes))
    inset = INSET * max(map(_depth, blocks))
    gutter = STEP * (len(kinds) + 1) + 8 if kinds else STEP * 2 if two else 0
    left = MARGIN + STEP * len({f.sources == (CLIENTS,) for f in flows if f.route == "outer"}) + inset
    right = left + made.host_width + gutter
    first = left + made.host_width + (gutter - STEP * (len(kinds) - 1)) / 2
    made.between = {kind: first + STEP * i for i, kind in enumerate(kinds)}
    made.bottom = _place(made, blocks, top, (left, right if two else left))
    edge = right + made.host_width if two else right
    made.width = edge + inset + STEP * _lines_right_of(made, flows) + MARGIN
    return made


def _lines_right_of(made: Layout, flows: Iterable[Flow]) -> int:
    """How many lines lead down beside the right column."""
    around = (f for f in flows if f.route == "outer")
    return sum(any(not made.is_left.get(at, True) for at in (*f.sources, *f.targets)) for f in around)


def _depth(block: Row | Frame) -> int:
    return 0 if isinstance(block, Row) else 1 + max(map(_depth, block.blocks))


def _rows(blocks: Iterable[Row | Frame]) -> Iterator[Row]:
    for block in blocks:
        if isinstance(block, Row):
            yield block
        else:
            yield from _rows(block.blocks)


def _place(
    made: Layout, blocks: Sequence[Row | Frame], y: float, columns: tuple[float, float], even: bool = False
) -> float:
    """Place the blocks below each other; the y below the last."""
    for block, before in zip(blocks, (None, *blocks), strict=False):
        if isinstance(block, Row):
            y = _place_row(made, block, y, columns, even)
            continue
        y += STEP * isinstance(before, Row)
        index = len(made.frames)
        below = _place(made, block.blocks, y + 2 * STEP, columns, even=block.kind == "instance")
        inset = INSET * _depth(block)
        box = Box(columns[0] - inset, y, columns[1] - columns[0] + made.host_width + 2 * inset, below - y)
        made.frames.insert(index, (block, box))  # the outer one is drawn first
        y = below + STEP
    return y


def _place_row(made: Layout, row: Row, y: float, columns: tuple[float, float], even: bool) -> float:
    """The y below both hosts; ``even`` makes them as high as the higher one."""
    cells = [(cell, x) for cell, x in zip((row.left, row.right), columns, strict=True) if cell]
    belows = [_place_units(made, cell, x, y, x == columns[0]) for cell, x in cells]
    for (cell, x), below in zip(cells, belows, strict=True):
        made.hosts.append((cell, Box(x, y, made.host_width, (max(belows) if even else below) - PAD - y)))
    return max(belows)


def _place_units(made: Layout, cell: Cell, x: float, y: float, is_left: bool) -> float:
    y += made.header
    width = made.host_width - 2 * PAD
    for plan, unit in cell.units:
        made.units[unit.at] = Box(x + PAD, y, width, unit_height(plan, unit, width - 2 * PAD))
        made.is_left[unit.at] = is_left
        y = made.units[unit.at].bottom + STEP
    return y


def unit_lines(plan: Plan, unit: Unit, room: float) -> list[str]:
    """What stands in a unit below its name."""
    ports = [f"{purpose} {number}" for purpose, number in words.ports(plan, unit)]
    lines = [words.fit(words.place(plan, unit), room, words.SMALL)]
    return lines + words.wrap(ports, room, words.SMALL)


def unit_height(plan: Plan, unit: Unit, room: float) -> float:
    return STEP * max(2 + len(unit_lines(plan, unit, room)), 4)


def _blocks(plans: Sequence[Plan]) -> tuple[Row | Frame, ...]:
    """The first plan gives the hosts; units of the others are written into them."""
    cells = {node.name: _cell(plans, node) for node in plans[0].fleet.nodes}
    plan = plans[0]
    of_instances = {m.node.name for i in plan.instances for m in i.members}
    alone = _paired([cell for name, cell in cells.items() if name not in of_instances])
    if len(plan.sets) < 2:
        inner = _of_one_set(plan.sets[0], cells) if plan.sets else _of_instances(plan.instances, cells)
        return (*alone, *inner)
    return (*alone, *(Frame("set", _set_label(s), "", _of_one_set(s, cells)) for s in plan.sets))


def _cell(plans: Sequence[Plan], node: Node) -> Cell:
    first = {"proxy": 0, "router": 1, "ray": 2, "engine": 3}
    units: list[tuple[Plan, Unit]] = []
    for plan in plans:
        its = next((n.name for n in plan.fleet.nodes if n.address == node.address), "")
        units += [(plan, u) for u in sorted(plan.units_of(its), key=lambda u: first[u.kind])]
    return Cell(node, tuple(units))


def _set_label(one: Set) -> str:
    return f"{one.name}: {len(one.prefill)} prefill, {len(one.decode)} decode"


def _of_one_set(one: Set, cells: dict[str, Cell]) -> tuple[Row | Frame, ...]:
    """Prefill beside decode where that is not longer than below each other."""
    banded = (*_of_instances(one.prefill, cells), *_of_instances(one.decode, cells))
    if any(i.is_group for i in one.instances) or max(len(one.prefill), len(one.decode)) > len(banded):
        return banded
    pairs = range(max(len(one.prefill), len(one.decode)))
    sides = [[cells[i.head.name] for i in its] for its in (one.prefill, one.decode)]
    return tuple(Row(*(side[n] if n < len(side) else None for side in sides)) for n in pairs)


def _of_instances(instances: Iterable[Instance], cells: dict[str, Cell]) -> tuple[Row | Frame, ...]:
    """A frame for each that spans hosts, the others in pairs."""
    blocks: list[Row | Frame] = []
    singles: list[Cell] = []
    for instance in instances:
        if not instance.is_group:
            singles.append(cells[instance.head.name])
            continue
        blocks += _paired(singles)
        singles = []
        hosts = _paired([cells[m.node.name] for m in instance.members])
        label = f"{instance.name} over {len(instance.members)} hosts"
        blocks.append(Frame("instance", label, f"{words.sizes(instance)}, restarts as one", hosts))
    return (*blocks, *_paired(singles))


def _paired(cells: list[Cell]) -> tuple[Row, ...]:
    return tuple(Row(*cells[n : n + 2]) for n in range(0, len(cells), 2))

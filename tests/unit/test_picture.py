"""The picture of a plan: everything is in it, and nothing lies on anything else."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from fleet import inventory, picture_text
from fleet import recipe as recipes
from fleet.cli.main import main
from fleet.picture import draw
from fleet.plan import plan
from fleet.topology import Plan

PD, LAB_PD, REPLICAS = "qwen3-235b-a22b-w8a8/a3-pd", "lab/prefill-decode", "lab/replicas"
A2, RAY, ONE = "qwen3-235b-a22b-w8a8/a2-32g", "qwen3-235b-a22b/a2-ray", "qwen3-235b-a22b-w8a8/a3-single"
SVG = "{http://www.w3.org/2000/svg}"
LONG = "rack-17-node-{}.of-a-cluster-with-a-very-long-name.example.internal"


def hosts(first: int, after: int) -> list[str]:
    return [f"10.0.0.{n}" for n in range(first, after)]


def lay(recipe: str, data: dict[str, Any] | None = None, v6: bool = False, **groups: list[str]) -> Plan:
    found: dict[str, dict[str, Any]] = {}
    for name in itertools.chain(*groups.values()):
        address = f"2001:db8:aaaa:bbbb:cccc:dddd:eeee:{len(found) + 0x1000:x}" if v6 else f"10.1.0.{len(found) + 1}"
        address = name if name[0].isdigit() else address
        found.setdefault(name, {"recipe": recipe, "address": address, **(data or {})})
    return plan(inventory.build("inventories/made-up.py", groups, found), recipes.load(recipes.find(recipe)))


SHAPES = {
    "one host": lay(ONE, serve=hosts(1, 2)),
    "one host with its front door": lay(REPLICAS, serve=hosts(1, 2), proxy=hosts(1, 2)),
    "replicas without an entry": lay(REPLICAS, serve=hosts(1, 6)),
    "replicas, two cache-aware entries": lay(REPLICAS, {"cache_aware": True}, serve=hosts(1, 6), proxy=hosts(1, 3)),
    "data parallel, the entry on the second host": lay(A2, serve=hosts(1, 5), proxy=hosts(4, 5)),
    "ray with an entry of its own": lay(RAY, ray_head=hosts(1, 2), ray_worker=hosts(2, 3), proxy=hosts(9, 10)),
    "1P2D beside each other": lay(LAB_PD, prefill=hosts(1, 2), decode=hosts(2, 4), proxy=hosts(3, 4)),
    "8P16D": lay(LAB_PD, prefill=hosts(1, 9), decode=hosts(9, 25), proxy=hosts(30, 31)),
    "8P16D hosts, decode over two": lay(PD, prefill=hosts(1, 9), decode=hosts(9, 25), proxy=hosts(1, 3)),
    "two sets, two entries": lay(PD, {"sets": 2}, prefill=hosts(1, 9), decode=hosts(9, 25), proxy=hosts(9, 11)),
    "a set with a front door": lay(
        PD, {"front_door": True}, prefill=hosts(1, 2), decode=hosts(2, 4), proxy=hosts(1, 2)
    ),
    "long names": lay(A2, serve=[LONG.format(n) for n in (1, 2)], proxy=[LONG.format(2)]),
    "long names, IPv6": lay(A2, v6=True, serve=[LONG.format(n) for n in (1, 2)], proxy=[LONG.format(1)]),
    "a service": lay(
        ONE, {"service": "abcdefghijklmnop", "port_offset": 100}, serve=hosts(1, 4), proxy=hosts(1, 2)
    ),
}  # fmt: skip
every_shape = pytest.mark.parametrize("made", SHAPES.values(), ids=list(SHAPES))


class Drawn:
    """The shapes of a picture: (x, y, right, bottom) of boxes, (kind, x, y, x, y) of lines."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        self.width, self.height = (float(n) for n in self.root.attrib["viewBox"].split()[2:])

    def boxes(self, *kinds: str) -> list[tuple[float, float, float, float]]:
        found = []
        for rect in self.root.iter(f"{SVG}rect"):
            if rect.get("class") in kinds:
                x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
                found.append((x, y, x + w, y + h))
        return found

    def texts(self) -> list[tuple[str, float, float, float]]:
        """Text, left, right, baseline."""
        found = []
        for text in self.root.iter(f"{SVG}text"):
            kind, words = text.get("class") or "name", "".join(text.itertext())
            size = {"title": 15.0, "name": 13.0, "letter": 9.5}.get(kind, 12.0)
            width = picture_text.width(words, size, bold=kind in ("title", "name") and text.get("style") is None)
            x, y = float(text.attrib["x"]), float(text.attrib["y"])
            start = x - width if "end" in kind else x - width / 2 if kind in ("letter", "on-dark") else x
            found.append((words, start, start + width, y))
        return found

    def lines(self) -> list[tuple[str, float, float, float, float]]:
        found = []
        for path in self.root.iter(f"{SVG}path"):
            match = re.fullmatch(r"M([\d.]+),([\d.]+) ([HV])([\d.]+)", path.attrib["d"])
            if match and path.attrib["class"].startswith("line"):
                x, y, end = float(match[1]), float(match[2]), float(match[4])
                to = (end, y) if match[3] == "H" else (x, end)
                found.append((path.attrib["class"], min(x, to[0]), min(y, to[1]), max(x, to[0]), max(y, to[1])))
        return found


@every_shape
def test_every_host_unit_and_port_is_in_it(made: Plan) -> None:
    svg = draw(made)
    words = " ".join("".join(t.itertext()) for t in ElementTree.fromstring(svg).iter(f"{SVG}text"))
    for unit in made.units:
        assert f"<title>{unit.at}</title>" in svg
        for purpose, number in picture_text.ports(made, unit):
            assert f"{purpose} {number}" in words
    for node in made.fleet.nodes:
        assert f"<title>{node.name}, {node.address}</title>" in svg


@every_shape
def test_boxes_do_not_meet_and_lie_in_each_other(made: Plan) -> None:
    drawn = Drawn(draw(made))
    units, its_hosts, frames = drawn.boxes("unit", "way"), drawn.boxes("host"), drawn.boxes("instance", "set")
    assert len(units) == len(made.units) and len(its_hosts) == len(made.fleet.nodes)
    assert not [pair for group in (units, its_hosts) for pair in itertools.combinations(group, 2) if meet(*pair)]
    assert all(sum(within(unit, host) for host in its_hosts) == 1 for unit in units)
    assert all(within(host, frame) or not meet(host, frame) for host in its_hosts for frame in frames)
    assert all(within(box, (0, 0, drawn.width, drawn.height)) for box in its_hosts + frames)


@every_shape
def test_words_stay_in_their_boxes_and_apart(made: Plan) -> None:
    drawn = Drawn(draw(made))
    boxes = drawn.boxes("unit", "way", "host", "instance", "set")
    for words, left, right, y in drawn.texts():
        around = [b for b in boxes if b[0] <= left <= b[2] and b[1] < y < b[3]] or [(0, 0, drawn.width, drawn.height)]
        inner = min(around, key=lambda b: (b[2] - b[0]) * (b[3] - b[1]))
        assert left >= inner[0] and right <= inner[2] and y + 3 <= inner[3], words
    for one, two in itertools.combinations(drawn.texts(), 2):
        assert abs(one[3] - two[3]) >= 9 or one[2] <= two[1] or two[2] <= one[1], (one, two)


@every_shape
def test_lines_of_two_kinds_never_lie_on_each_other_nor_on_a_unit_or_words(made: Plan) -> None:
    drawn = Drawn(draw(made))
    lines = drawn.lines()
    for one, two in itertools.combinations(lines, 2):
        if one[0] != two[0]:
            across = max(one[1], two[1]) < min(one[3], two[3]) and one[2] == one[4] == two[2] == two[4]
            down = max(one[2], two[2]) < min(one[4], two[4]) and one[1] == one[3] == two[1] == two[3]
            assert not across and not down, (one, two)
    units, texts = drawn.boxes("unit", "way"), drawn.texts()
    for _, x, y, right, bottom in lines:
        for box in units:
            assert right <= box[0] or x >= box[2] or bottom <= box[1] or y >= box[3], (x, y, box)
        for words, left, end, base in texts:
            if len(words) > 1:
                assert right <= left or x >= end or bottom <= base - 9 or y >= base, (x, y, words)


@every_shape
def test_the_same_plan_gives_the_same_bytes_and_names_nothing_outside(made: Plan) -> None:
    svg = draw(made)
    assert svg == draw(made)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|url\(|href|font-face", svg)


@every_shape
def test_a_phone_can_show_it(made: Plan) -> None:
    assert Drawn(draw(made)).width <= 820, "two columns, however many hosts"


def test_the_legend_has_the_kinds_that_occur() -> None:
    assert kinds("one host") == "R"
    assert kinds("data parallel, the entry on the second host") == "RDW"
    assert kinds("ray with an entry of its own") == "RYW"
    assert kinds("1P2D beside each other") == "RK"
    assert kinds("two sets, two entries") == "RKDW"


def test_a_unit_says_its_ranks_devices_and_handshakes() -> None:
    svg = draw(SHAPES["8P16D hosts, decode over two"])
    assert re.search(r"decode-7</tspan>: ranks 4-7, TP4</text>\n<text [^>]*>NPUs 0-15, Docker, no API<", svg)
    assert "kv 31500-31531" in svg


def test_names_without_room_are_shortened_and_kept_for_the_pointer() -> None:
    svg = draw(SHAPES["long names, IPv6"])
    assert re.search(r">rack-17-node-1[^<]*\.\.\.[^<]*internal<", svg)
    assert f"<title>{LONG.format(1)}, 2001:db8:aaaa:bbbb:cccc:dddd:eeee:1000</title>" in svg
    assert ">2001:db8:aaaa:bbbb:cccc:dddd:eeee:1000<" in svg


def test_services_beside_each_other_share_the_box_of_their_host() -> None:
    recipe = "lab/replicas"
    chat = lay(recipe, {"service": "chat"}, serve=hosts(1, 2))
    code = lay(recipe, {"service": "code", "port_offset": 100}, serve=hosts(1, 2))
    svg = draw(chat, code)
    assert len(Drawn(svg).boxes("host")) == 1
    assert "chat serve-0" in svg and "code serve-0" in svg and "api 8100" in svg


def test_markup_in_a_name_stays_text() -> None:
    made = SHAPES["one host"]
    model = made.recipe.model.model_copy(update={"served_name": "a<b>&c"})
    svg = draw(replace(made, recipe=made.recipe.model_copy(update={"model": model})))
    assert "a&lt;b&gt;&amp;c" in svg and ElementTree.fromstring(svg) is not None


def test_draw_prints_or_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    printed = CliRunner().invoke(main, ["draw", "inventories/a3-pd.py"])
    assert printed.exit_code == 0 and printed.stdout.startswith("<svg")
    target = tmp_path / "plan.svg"
    target.write_text("old")
    assert CliRunner().invoke(main, ["draw", "inventories/a3-pd.py", "--output", str(target)]).exit_code == 0
    assert target.read_text() == printed.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["plan.svg"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inventories/no.py"], "there is no such file"),
        (
            ["inventories/lab.py", "--output", "/no/such/folder/plan.svg"],
            "/no/such/folder: cannot be written or read: no such file or directory",
        ),
        (["inventories/lab.py", "--output", "docs"], "docs: this is a folder; name a file in it [RUN-OUTPUT]"),
    ],
)
def test_draw_tells_faults_in_one_line(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    done = CliRunner().invoke(main, ["draw", *words])
    assert done.exit_code in (1, 2) and said in done.output and "Traceback" not in done.output


def kinds(shape: str) -> str:
    """The letters of the legend, from the left ends of its lines."""
    drawn = Drawn(draw(SHAPES[shape]))
    lowest = max(box[3] for box in drawn.boxes("host", "instance", "set"))
    return "".join(words for words, _, _, y in drawn.texts() if len(words) == 1 and y > lowest)


def meet(one: tuple[float, ...], two: tuple[float, ...]) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]


def within(one: tuple[float, ...], two: tuple[float, ...]) -> bool:
    return two[0] <= one[0] and two[1] <= one[1] and one[2] <= two[2] and one[3] <= two[3]

"""Reading an inventory through pyinfra's own loader, so that both always see the same fleet."""

from __future__ import annotations

import ast
import logging
import sys
from pathlib import Path
from typing import Any

from fleet import yamlfile
from fleet.findings import FleetError, error
from fleet.inventory import Fleet, build, role_of_group

MAX_BYTES = 20_000_000


def fleet_of(path: str, overrides: dict[str, Any] | None = None) -> Fleet:
    """The fleet of an inventory file; nothing is connected to. ``overrides`` win over every host's own data."""
    source = Path(path)
    _refuse_unreadable(source)
    inventory = _pyinfra_inventory(source, overrides or {})
    return from_pyinfra(path, inventory)


def from_pyinfra(source: str, inventory: Any) -> Fleet:
    """The fleet of an inventory that pyinfra has already loaded."""
    groups = {name: [host.name for host in hosts] for name, hosts in inventory.groups.items()}
    data = {host.name: dict(host.data.dict()) for host in inventory}
    return build(source, groups, data)


def _refuse_unreadable(path: Path) -> None:
    """What pyinfra's loader would pass over or end on with a traceback."""
    where = str(path)
    if not path.exists():
        known = [str(p) for p in sorted(Path("inventories").glob("*.py"))]
        mend = yamlfile.nearest(where, known) if known else "give the path of an inventory file"
        raise FleetError(error("INV-READ", where, "there is no such file", mend))
    if not path.is_file() or path.suffix != ".py":
        raise FleetError(error("INV-READ", where, "an inventory is a Python file", "give the path of a .py file"))
    try:
        raw = path.read_bytes()
    except OSError as exc:
        reason = (exc.strerror or "unreadable").lower()
        raise FleetError(error("INV-READ", where, f"cannot read: {reason}", "mend its permissions")) from exc
    if len(raw) > MAX_BYTES:
        raise FleetError(error("INV-READ", where, f"{len(raw)} bytes is too much", "split the inventory"))
    try:
        tree = ast.parse(raw, str(path))
    except (SyntaxError, ValueError) as exc:
        line = getattr(exc, "lineno", None)
        at = f"{where}:{line}" if line else where
        raise FleetError(error("INV-READ", at, f"not Python: {getattr(exc, 'msg', exc)}", "mend this line")) from exc
    if not tree.body:
        mend = "write a list of host names, such as serve = ['10.0.0.11']"
        raise FleetError(error("INV-EMPTY", where, "the file is empty", mend))
    _refuse_ignored(where, tree)


def _refuse_ignored(where: str, tree: ast.Module) -> None:
    """A role that is no list is passed over by pyinfra without a word."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name = statement.targets[0].id
        if not role_of_group(name):
            continue
        if isinstance(statement.value, ast.Constant | ast.Dict | ast.Set | ast.JoinedStr):
            at = f"{where}:{statement.lineno} {name}"
            mend = f"write {name} = ['10.0.0.11']"
            raise FleetError(error("INV-TYPE", at, "a role is a list of hosts", mend))
        for host in _listed_twice(statement.value):
            at = f"{where}:{statement.lineno} {name}"
            raise FleetError(error("INV-TWICE", at, f"{host} is listed twice", "list it once, or mend the name"))


def _listed_twice(value: ast.expr) -> list[str]:
    """Literal host names that a list repeats; pyinfra drops the second without a word."""
    items = value.elts if isinstance(value, ast.List) else []
    firsts = [i.elts[0] if isinstance(i, ast.Tuple) and i.elts else i for i in items]
    names = [i.value for i in firsts if isinstance(i, ast.Constant) and isinstance(i.value, str)]
    return sorted({n for n in names if names.count(n) > 1})


def _pyinfra_inventory(path: Path, overrides: dict[str, Any]) -> Any:
    with_cwd = str(Path.cwd())
    if with_cwd not in sys.path:
        sys.path.append(with_cwd)
    sys.dont_write_bytecode = True
    import pyinfra_cli.inventory as loader
    from pyinfra.api.state import State
    from pyinfra.context import ctx_state

    logger = logging.getLogger("pyinfra")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with ctx_state.use(State(check_for_changes=False)):
            return loader.make_inventory(str(path), cwd=str(Path.cwd()), override_data=overrides)
    except Exception as exc:  # an inventory is the user's code: whatever it raises is a fault of the file
        cause = getattr(exc, "exception", exc)
        where = str(getattr(exc, "filename", path))
        what = f"{type(cause).__name__}: {cause}"
        line = _line_in(where, cause)
        raise FleetError(
            error("INV-READ", f"{where}:{line}" if line else where, what, "mend the inventory or its group_data")
        ) from exc
    finally:
        logger.setLevel(level)


def _line_in(filename: str, exc: BaseException) -> int | None:
    """The last line of the file that the exception passed through."""
    if isinstance(exc, SyntaxError):
        return exc.lineno
    found = None
    trace = exc.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename.endswith(Path(filename).name):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found

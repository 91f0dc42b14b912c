"""Reading an inventory through pyinfra's own loader, so that both always see the same fleet."""

from __future__ import annotations

import ast
import contextlib
import difflib
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
    inventory, written = _load(source, overrides or {})
    groups = {name: [host.name for host in hosts] for name, hosts in inventory.groups.items()}
    for name, hosts in written.items():
        if name in groups:
            position = {host: i for i, host in enumerate(_listed(hosts))}
            # pyinfra orders a group by the first mention of its hosts in the whole file; people order lists.
            groups[name].sort(key=lambda host: position.get(host, len(position)))
    data = {host.name: dict(host.data.dict()) for host in inventory}
    _refuse_unknown_pyinfra_keys(path, data)
    return build(path, groups, data)


def _refuse_unknown_pyinfra_keys(source: str, data: dict[str, dict[str, Any]]) -> None:
    """pyinfra passes over a misspelt ``ssh_*`` or ``_sudo``; other names with _ in front are a file's own business."""
    from pyinfra.api.arguments import all_global_arguments
    from pyinfra.connectors.ssh import ConnectorData

    ssh = list(ConnectorData.__annotations__)
    arguments = [name for name, _ in all_global_arguments()]
    last_with = {key: host for host, keys in data.items() for key in keys}
    findings = []
    for key, host in last_with.items():
        if key.startswith("ssh_") and key not in ssh:
            mend = yamlfile.nearest(key, ssh)
        elif key.startswith("_") and key not in arguments:
            near = difflib.get_close_matches(key, arguments, 1, 0.75)
            if not near:
                continue
            mend = f"write {near[0]}"
        else:
            continue
        findings.append(error("INV-KEY", f"{source} {host}", f"unknown key {key}", mend))
    if findings:
        raise FleetError(*findings)


def _refuse_unreadable(path: Path) -> None:
    """What pyinfra's loader would pass over or end on with a traceback."""
    where = str(path)
    if not _exists(path):
        known = [str(p) for p in sorted(Path("inventories").glob("*.py"))]
        mend = yamlfile.nearest(where, known) if known else "give the path of an inventory file"
        raise FleetError(error("INV-READ", where, "there is no such file", mend))
    if not path.is_file() or path.suffix != ".py":
        raise FleetError(error("INV-READ", where, "an inventory is a Python file", "give the path of a .py file"))
    tree = _parse(path)
    for beside in sorted((path.parent / "group_data").glob("*.py")):  # pyinfra runs them all
        _parse(beside)
    if not tree.body:
        mend = "write a list of host names, such as serve = ['10.0.0.11']"
        raise FleetError(error("INV-EMPTY", where, "the file is empty", mend))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False


def _parse(path: Path) -> ast.Module:
    """The syntax of a file; nothing of it is run."""
    where = str(path)
    try:
        raw = path.read_bytes()
    except OSError as exc:
        reason = (exc.strerror or "unreadable").lower()
        raise FleetError(error("INV-READ", where, f"cannot read: {reason}", "mend its permissions")) from exc
    if len(raw) > MAX_BYTES:
        raise FleetError(error("INV-READ", where, f"{len(raw)} bytes is too much", "split the inventory"))
    if raw.startswith(b"\xef\xbb\xbf"):
        mend = "save the file as UTF-8 without it"
        raise FleetError(error("INV-READ", f"{where}:1", "the file begins with a byte order mark", mend))
    try:
        raw.decode()
        return ast.parse(raw, where)
    except UnicodeDecodeError as exc:
        what = f"byte {exc.start} is not UTF-8 (utf-8 is what Python files are written in)"
        raise FleetError(error("INV-READ", where, what, "save the file as UTF-8")) from exc
    except (SyntaxError, ValueError) as exc:
        line = getattr(exc, "lineno", None)
        at = f"{where}:{line}" if line else where
        what = f"not Python: {getattr(exc, 'msg', exc)}"
        raise FleetError(error("INV-READ", at, what, "mend this line")) from exc


def _refuse_bad_role(where: str, name: str, value: Any) -> None:
    """A role that is no list of hosts is passed over by pyinfra without a word, or ends in a traceback."""
    hosts = value[0] if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict) else value
    mend = f"write {name} = ['10.0.0.11'], or {name} = [('node-1', {{'ssh_hostname': '10.0.0.11'}})]"
    if not isinstance(hosts, list):
        raise FleetError(error("INV-TYPE", f"{where} {name}", "a role is a list of hosts", mend))
    for host in hosts:
        if not isinstance(host, str) and not (
            isinstance(host, tuple) and len(host) == 2 and isinstance(host[0], str) and isinstance(host[1], dict)
        ):
            raise FleetError(error("INV-TYPE", f"{where} {name}", f"{host!r} is no host", mend))
    listed = _listed(value)
    for host in sorted({h for h in listed if listed.count(h) > 1}):
        at = f"{where} {name}"
        raise FleetError(error("INV-TWICE", at, f"{host} is listed twice", "list it once, or mend the name"))


def _listed(value: Any) -> list[str]:
    """The host names of a group as the file lists them."""
    hosts = value[0] if isinstance(value, tuple) else value
    return [host[0] if isinstance(host, tuple) else host for host in hosts]


def _line_of(path: Path, name: str) -> str:
    """``file:line`` of the last assignment to a name."""
    lines = [
        statement.lineno
        for statement in _parse(path).body
        if isinstance(statement, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == name for t in statement.targets)
    ]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _load(path: Path, overrides: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """pyinfra's inventory, and the values of the file's groups as written."""
    with_cwd = str(Path.cwd())
    if with_cwd not in sys.path:
        sys.path.append(with_cwd)
    sys.dont_write_bytecode = True
    import pyinfra_cli.inventory as loader
    from pyinfra.api.state import State
    from pyinfra.context import ctx_state

    logger = logging.getLogger("pyinfra")
    level, is_group = logger.level, loader._is_inventory_group
    written: dict[str, Any] = {}

    def watched(name: str, value: Any) -> bool:
        if role_of_group(name):
            _refuse_bad_role(_line_of(path, name), name, value)
            written[name] = value
        return bool(is_group(name, value))

    logger.setLevel(logging.ERROR)
    loader._is_inventory_group = watched
    try:
        # what the files print is for people, never part of a JSON answer
        with ctx_state.use(State(check_for_changes=False)), contextlib.redirect_stdout(sys.stderr):
            return loader.make_inventory(str(path), cwd=str(Path.cwd()), override_data=overrides), written
    except (FleetError, KeyboardInterrupt):
        raise
    except BaseException as exc:  # an inventory is the user's code: whatever it raises is a fault of the file
        cause = getattr(exc, "exception", exc)
        where = str(getattr(exc, "filename", path))
        line = _line_in(where, cause)
        at = f"{where}:{line}" if line else where
        what = f"{type(cause).__name__}: {cause}"
        raise FleetError(error("INV-READ", at, what, "mend the inventory or its group_data")) from exc
    finally:
        logger.setLevel(level)
        loader._is_inventory_group = is_group


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

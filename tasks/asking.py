"""Asking a host as root, where the login may become it; and what is said where it may not, or nothing comes back."""

from __future__ import annotations

import shlex

from fleet.findings import Finding, error
from tasks.edge import host

NO_SUDO = "no-sudo"


def tries_sudo() -> bool:
    """Whether sudo is tried instead of pyinfra's own: that would ask for a password where nobody can type one."""
    return bool(host.data.get("_sudo", False)) and not host.data.get("_sudo_password", None)


def as_root(script: str) -> str:
    """The script run as root, by sudo where the login is not; NO_SUDO is all it prints where that may not be."""
    text = f's={shlex.quote(script)}; if [ $(id -u) = 0 ]; then sh -c "$s"; '
    text += 'elif sudo -n true 2>/dev/null; then sudo -n sh -c "$s"; '
    return text + f"else echo {NO_SUDO}; fi"


def no_answer(said: object) -> Finding:
    """Why a host gave no usable answer."""
    if said == NO_SUDO:
        user = host.data.get("ssh_user", None) or "the login"
        mend = f"let {user} use sudo without a password, or give _sudo_password"
        return error("HOST-SUDO", host.name, f"{user} may not become root", mend)
    what = "the first command had no answer; the login's shell or sudo did not run it"
    return error("HOST-ANSWER", host.name, what, "try it: ssh to the host as this user and run sudo -n id")

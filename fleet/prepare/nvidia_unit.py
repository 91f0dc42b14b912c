"""A unit of ours that keeps GPUs awake and known to the control groups, before any container starts.

With systemd's cgroup driver a daemon-reload takes the GPUs from containers that got them by request, unless /dev/char
has links to their nodes (nvidia-container-toolkit issue 48). Persistence keeps the driver's state between processes;
Debian's and Ubuntu's own daemon starts with it switched off.
"""

from __future__ import annotations

from fleet.prepare.common import sum_of, write
from fleet.prepare.nvidia_state import OURS, PERSISTENCE, PROGRAM, UNIT, State

SCRIPT = """\
#!/bin/sh
# Written by vllm-fleet: persistence mode, and a link in /dev/char for each node of a GPU.
timeout -k 5 60 nvidia-smi -pm 1
if command -v nvidia-ctk >/dev/null; then
  timeout -k 5 60 nvidia-ctk system create-dev-char-symlinks --create-all && exit 0
fi
for node in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-modeset /dev/nvidia-uvm /dev/nvidia-uvm-tools \\
  /dev/nvidia-caps/* /dev/nvidia-caps-imex-channels/* /dev/nvidia-nvswitch*; do
  test -c "$node" || continue
  number=$(stat -L -c '%t %T' "$node")
  link=/dev/char/$((0x${number% *})):$((0x${number#* }))
  test -e "$link" || ln -sf "../${node#/dev/}" "$link"
done
exit 0
"""
TEXT = f"""\
[Unit]
Description=Persistence and device links of GPUs (vllm-fleet)
After=systemd-modules-load.service {PERSISTENCE}.service
Before=containerd.service docker.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh {PROGRAM}
TimeoutStartSec=180

[Install]
WantedBy=multi-user.target
"""
SUMS = {UNIT: sum_of(TEXT), PROGRAM: sum_of(SCRIPT)}


def right(state: State) -> bool:
    """Whether it is there, as it should be, and has run."""
    written = all(state.sums.get(path) == total for path, total in SUMS.items())
    return written and state.enabled(OURS) and state.active(OURS)


def script() -> str:
    """Shell text that writes it, runs it and has it run with each start.

    The links come first: the daemon-reload after them is what takes GPUs away.
    """
    return "\n".join(
        [
            f"{write(PROGRAM, SCRIPT, '755')} || exit 1",
            f"/bin/sh {PROGRAM}",
            f"{write(UNIT, TEXT)} || exit 1",
            # Where the driver's package has a daemon: it holds the mode that was set.
            f"systemctl cat {PERSISTENCE}.service >/dev/null 2>&1 && systemctl enable --now {PERSISTENCE} 2>&1",
            f"systemctl daemon-reload && systemctl enable {OURS} 2>&1 && systemctl restart {OURS}",
        ]
    )

"""Stand-ins for the vendors' packages, made into a folder: .run files for NPUs, Debian packages for GPUs and tools.

They bear the vendors' names and behave as the vendors' do, and what they install is the lab's simulators. On a machine
that is no dressed lab host they change nothing. How an installation goes is the host's scenario to say: `install` in
`lab/scenario.py`, `lab.hardware.steer` to change it. A bare host comes from `lab.hardware.bare`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from lab.debian import apt_repository as apt_repository
from lab.debian import deb
from lab.errors import LabError
from lab.sim import layout

PAYLOAD_BYTES = 65536
CHIPS = {"ascend-a2": "910b", "ascend-a3": "A3"}
DRIVERS = {"ascend-a2": "Ascend-hdk-910b", "ascend-a3": "Atlas-A3-hdk"}
TOOLKIT_VERSION = "1.17.8-1"

# Verifies itself as the vendor's does, then hands over to the installer of the host.
HEADER = """\
#!/bin/sh
# The lab's stand-in for {name}.
# On a machine that is no dressed lab host it changes nothing.
lab="${{VLLM_LAB_ROOT:-}}/usr/local/lib/vllm_lab"
printf 'Verifying archive integrity...  '
size=$(wc -c < "$0")
sum=$(tail -c +{begin} "$0" | sha256sum | cut -d ' ' -f 1)
if [ "$sum" != {sum} ] || [ "$size" -ne {size} ]; then
  echo "Error in SHA256 checksums: $sum is different from {sum}" >&2
  exit 2
fi
echo '100%   SHA256 checksums are OK. All good.'
if [ ! -x "$lab/install" ]; then
  echo "this is the lab's stand-in for {name}, and this is no lab host" >&2
  exit 1
fi
[ "$*" = --check ] || echo 'Uncompressing {title}  100%  '
exec "$lab/install" {module} "$0" '{package}' "$@"
exit 1
"""


# The vendors' .run files


def driver_run(folder: Path, version: str, arch: str, family: str) -> Path:
    """The driver of NPUs; `arch` is x86_64 or aarch64, `family` ascend-a2 or ascend-a3."""
    name = f"{chosen(DRIVERS, family)}-npu-driver_{version}_linux-{arch}.run"
    package = {"kind": "driver", "version": version, "arch": arch, "family": family}
    return run_file(folder, name, "ascend", "ASCEND DRIVER RUN PACKAGE", package)


def firmware_run(folder: Path, version: str, family: str) -> Path:
    """The firmware of NPUs, for all architectures. As the vendor's it counts from the next boot, or from the next
    driver that takes effect at once; the scenario's `firmware_counts` changes that.
    """
    name = f"{chosen(DRIVERS, family)}-npu-firmware_{version}.run"
    package = {"kind": "firmware", "version": version, "arch": None, "family": family}
    return run_file(folder, name, "ascend", "ASCEND FIRMWARE RUN PACKAGE", package)


def cann_runs(folder: Path, version: str, arch: str, family: str) -> list[Path]:
    """Toolkit, operators (kernels before 8.5) and nnal of CANN, in the order in which they are installed."""
    made = []
    for kind, stem in cann_names(version, family).items():
        package = {"kind": kind, "version": version, "arch": arch, "family": family, "chip": chosen(CHIPS, family)}
        name = f"{stem}_{version}_linux-{arch}.run"
        made.append(run_file(folder, name, "cann", f"ASCEND {kind.upper()} RUN PACKAGE", package))
    return made


def cann_names(version: str, family: str) -> dict[str, str]:
    """What the packages of a version are called, without version and architecture."""
    from lab.sim.cann_run import new_layout

    chip = chosen(CHIPS, family)
    ops = f"Ascend-cann-{chip}-ops"
    if not new_layout(version):
        ops = "Atlas-A3-cann-kernels" if chip == "A3" else f"Ascend-cann-kernels-{chip}"
    return {"toolkit": "Ascend-cann-toolkit", "ops": ops, "nnal": "Ascend-cann-nnal"}


def chosen(names: Mapping[str, str], family: str) -> str:
    if family not in names:
        raise LabError(f"there is no .run package for {family!r}; choose from {', '.join(names)}")
    return names[family]


def run_file(folder: Path, name: str, module: str, title: str, package: Mapping[str, object]) -> Path:
    """An executable shell script with a payload whose sum and size it knows."""
    payload = payload_of(name)
    package_text = json.dumps({**package, "name": name})
    begin = size = 0
    text = ""
    while len(text.encode()) + 1 != begin:  # the numbers stand in the text whose length they give
        begin, size = len(text.encode()) + 1, len(text.encode()) + len(payload)
        text = HEADER.format(
            name=name, title=title, module=module, package=package_text,
            begin=f"{begin:<8}", size=f"{size:<8}", sum=hashlib.sha256(payload).hexdigest(),
        )  # fmt: skip
    path = folder / name
    path.write_bytes(text.encode() + payload)
    path.chmod(0o755)
    return path


def payload_of(name: str) -> bytes:
    """Bytes that are the same in each making, and no text."""
    blocks = (hashlib.sha256(f"{name} {number}".encode()).digest() for number in range(PAYLOAD_BYTES // 32))
    return b"".join(blocks)


def flip_a_byte(path: Path) -> None:
    """Damage a .run file as a bad disk would."""
    content = bytearray(path.read_bytes())
    content[-100] ^= 0xFF
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    """Damage a .run file as a copy that was cut off would."""
    os.truncate(path, path.stat().st_size - 1000)


# Debian packages


POSTINST = """\
if [ -x /usr/local/lib/vllm_lab/install ]; then
  /usr/local/lib/vllm_lab/install gpu {part} {version}
fi
systemctl daemon-reload 2>/dev/null || true
"""
POSTRM = """\
if [ "$1" = remove ] && [ -x /usr/local/lib/vllm_lab/install ]; then
  /usr/local/lib/vllm_lab/install gpu remove {part}
fi
systemctl daemon-reload 2>/dev/null || true
"""
SERVICE = """\
[Unit]
Description={description} (the lab's stand-in)

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={start}
ExecStop=/bin/rm -f /run/vllm-lab-units/{name}

[Install]
WantedBy=multi-user.target
"""
SLEEPS = """\
[Unit]
Description={description} (the lab's stand-in)

[Service]
ExecStart=/bin/sleep infinity

[Install]
WantedBy=multi-user.target
"""
CHRONY_CONF = """\
# The lab's stand-in, with the folders that Debian's reads.
confdir /etc/chrony/conf.d
sourcedir /etc/chrony/sources.d
"""
CHRONYC = """\
#!/bin/sh
# The lab's stand-in: a clock that is always right.
systemctl is-active -q chrony || { echo '506 Cannot talk to daemon'; exit 1; }
for word; do case $word in
  tracking) printf 'Reference ID    : 7F7F0101 (lab)\\nStratum         : 3\\nSystem time     : '
    printf '0.000001000 seconds fast of NTP time\\nLeap status     : Normal\\n'; exit 0 ;;
  -*) ;;
  *) echo '200 OK'; exit 0 ;;
esac; done
echo "the lab's chronyc knows tracking alone" >&2
exit 1
"""
DOCKER = """\
#!/bin/sh
# The lab's stand-in: a client without a daemon.
case $1 in --version|-v) echo "Docker version 26.1.5, build lab's stand-in"; exit 0 ;; esac
echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?' >&2
exit 1
"""
SAYS = '#!/bin/sh\necho "{name} 1.0 (the lab\'s stand-in)"\n'
UNITS = "/lib/systemd/system"
FABRIC = "nvidia-fabricmanager"
PERSISTENCED = "nvidia-persistenced"


def nvidia_debs(folder: Path, version: str, toolkit: str = TOOLKIT_VERSION) -> list[Path]:
    """Driver, fabric manager and container toolkit; `version` as Ubuntu writes it: 580.95.05-0ubuntu0.22.04.1.

    The driver's packages need each other in this very version, the fabric manager needs none of them: as the real
    ones, it fails to start with a driver of another version. Neither starts a service. What the devices show of the
    fabric and of persistence mode is so while the services run.
    """
    branch = version.split(".", maxsplit=1)[0]
    server, exact = f"{branch}-server", f"(= {version})"
    libraries = [f"libnvidia-compute-{server}", f"nvidia-kernel-common-{server}", f"nvidia-dkms-{server}-open"]
    parts = [*libraries, f"nvidia-utils-{server}", f"nvidia-compute-utils-{server}"]
    utils = layout.launchers(layout.NVIDIA_TOOLS, layout.NVIDIA_CODE)
    made = [deb(folder, name, version) for name in libraries]
    made.append(deb(folder, parts[3], version, files=utils, depends=f"{libraries[0]} {exact}"))
    start = nvidia_call("nvidia_smi", "service", PERSISTENCED)
    persistence = SERVICE.format(description="NVIDIA persistence daemon", name=PERSISTENCED, start=start)
    made.append(deb(folder, parts[4], version, files={f"{UNITS}/{PERSISTENCED}.service": (persistence, 0o644)}))
    made.append(
        deb(
            folder, f"nvidia-driver-{server}-open", version,
            depends=", ".join(f"{part} {exact}" for part in parts),
            postinst=POSTINST.format(part="driver", version=version), postrm=POSTRM.format(part="driver"),
        )
    )  # fmt: skip
    return [*made, fabric_manager_deb(folder, f"{FABRIC}-{branch}", version), *toolkit_debs(folder, toolkit)]


def fabric_manager_deb(folder: Path, name: str, version: str) -> Path:
    """The fabric manager, under the name of its branch or of none."""
    start = "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg"
    unit = SERVICE.format(description="NVIDIA fabric manager", name=FABRIC, start=start)
    files = layout.launchers(layout.FABRIC_MANAGER, layout.NVIDIA_CODE) | {
        f"{UNITS}/{FABRIC}.service": (unit, 0o644),
        "/usr/share/nvidia/nvswitch/fabricmanager.cfg": ("# the lab's stand-in\n", 0o644),
    }
    # A host that was dressed has a unit of its own there, which would hide the package's.
    before = f"rm -f /etc/systemd/system/{FABRIC}.service\n"
    after = POSTINST.format(part="fabric_manager", version=version)
    return deb(folder, name, version, files=files, postinst=before + after, postrm=POSTRM.format(part="fabric_manager"))


def toolkit_debs(folder: Path, version: str = TOOLKIT_VERSION) -> list[Path]:
    """nvidia-container-toolkit with what it needs."""
    exact = f"(= {version})"
    ctk = layout.launchers({"/usr/bin/nvidia-ctk": ("gpu_packages", "toolkit")}, layout.NVIDIA_CODE)
    hook = {"/usr/bin/nvidia-container-runtime-hook": ("#!/bin/sh\n# The lab's stand-in.\nexit 0\n", 0o755)}
    return [
        deb(folder, "libnvidia-container1", version),
        deb(folder, "libnvidia-container-tools", version, depends=f"libnvidia-container1 {exact}"),
        deb(
            folder, "nvidia-container-toolkit-base", version, files=ctk,
            postinst=POSTINST.format(part="toolkit", version=version), postrm=POSTRM.format(part="toolkit"),
        ),
        deb(
            folder, "nvidia-container-toolkit", version, files=hook,
            depends=f"libnvidia-container-tools {exact}, nvidia-container-toolkit-base {exact}",
        ),
    ]  # fmt: skip


def nvidia_call(module: str, function: str, argument: str) -> str:
    """A unit's line that calls a function of the simulators with one word."""
    code = f"import sys; sys.path.insert(0, '{layout.NVIDIA_CODE}'); from lab.sim.{module} import {function} as run; "
    return f"/usr/bin/python3 -IS -c \"{code}sys.exit(run(['{argument}']))\""


def common_debs(folder: Path, kernel: str, docker: bool = True) -> list[Path]:
    """What a distribution has and the lab's hosts have not: harmless stand-ins. `kernel` is the host's `uname -r`.

    `docker` is for hosts without an engine of their own: it is a client without a daemon.
    """
    headers = f"/usr/src/linux-headers-{kernel}/Makefile"
    build = {f"/lib/modules/{kernel}/build": f"/usr/src/linux-headers-{kernel}"}
    chrony = {
        f"{UNITS}/chrony.service": (SLEEPS.format(description="chrony"), 0o644),
        "/usr/bin/chronyc": (CHRONYC, 0o755),
        "/etc/chrony/chrony.conf": (CHRONY_CONF, 0o644),
        "/etc/chrony/conf.d/README": ("The lab's stand-in.\n", 0o644),
        "/etc/chrony/sources.d/README": ("The lab's stand-in.\n", 0o644),
    }
    engine = {
        "/usr/bin/docker": (DOCKER, 0o755),
        f"{UNITS}/docker.service": (SLEEPS.format(description="Docker"), 0o644),
    }
    return [
        deb(folder, "chrony", "4.3-2", files=chrony, postinst="systemctl enable -q --now chrony || true\n"),
        *(deb(folder, name, "1.0-1", files=programs(tools)) for name, tools in TOOLS.items()),
        deb(folder, f"linux-headers-{kernel}", "1.0-1", files={headers: ("# stand-in\n", 0o644)}, links=build),
        *([deb(folder, "docker.io", "26.1.5-1", files=engine)] if docker else []),
    ]


TOOLS = {
    "dkms": ("/usr/sbin/dkms",),
    "gcc": ("/usr/bin/gcc",),
    "make": ("/usr/bin/make",),
    "net-tools": ("/sbin/ifconfig", "/sbin/route"),
    "pciutils": ("/usr/bin/lspci",),
}


def programs(paths: Iterable[str]) -> layout.Files:
    """Programs that say what they are."""
    return {path: (SAYS.format(name=Path(path).name), 0o755) for path in paths}

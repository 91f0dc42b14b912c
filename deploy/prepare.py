"""Take machines with an operating system and SSH to hosts that can serve.

    pyinfra inventories/a3-pd.py deploy/prepare.py

Run again it changes nothing; a run that was cut goes on. Each part can be run alone: deploy/base.py, drivers.py,
reboot.py, containers.py, images.py, firewall.py. See docs/prepare.md.
"""

from fleet.prepare import reboots
from fleet.prepare.parts import PARTS
from tasks import guard, preparing
from tasks.edge import host

plan = guard.current_plan()
platform = plan.recipe.platform

preparing.bring(name="sources of packages", plan=plan, part="sources")
preparing.bring(name="packages, clock and tuning", plan=plan, part="base")
if platform.startswith("ascend"):
    preparing.bring(name="driver and firmware of the NPUs", plan=plan, part="ascend")
if platform == "nvidia":
    preparing.bring(name="driver and fabric manager of the GPUs", plan=plan, part="nvidia")
for wave in host.loop(reboots.waves(plan)):
    preparing.restart(name=f"restart where needed: {', '.join(wave)}", plan=plan, wave=wave)
if platform.startswith("ascend"):
    preparing.bring(name="CANN for engines outside containers", plan=plan, part="cann")
preparing.bring(name="container engine", plan=plan, part="containers")
preparing.bring(name="images", plan=plan, part="images")
preparing.bring(name="firewall", plan=plan, part="firewall")
preparing.prove(name="everything is as it should be", plan=plan, names=tuple(PARTS))
preparing.agree(name="hosts that work together have the same", plan=plan, names=tuple(PARTS))

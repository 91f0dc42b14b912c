"""Drivers and firmware, with the restarts that they need, and CANN for engines outside containers.

pyinfra inventories/a3-pd.py deploy/drivers.py
"""

from fleet.prepare import reboots
from tasks import guard, preparing
from tasks.edge import host

plan = guard.current_plan()
platform = plan.recipe.platform
names = ("ascend", "nvidia", "cann")

preparing.bring(name="sources of packages", plan=plan, part="sources")
if platform.startswith("ascend"):
    preparing.bring(name="driver and firmware of the NPUs", plan=plan, part="ascend")
if platform == "nvidia":
    preparing.bring(name="driver and fabric manager of the GPUs", plan=plan, part="nvidia")
for wave in host.loop(reboots.waves(plan)):
    preparing.restart(name=f"restart where needed: {', '.join(wave)}", plan=plan, wave=wave)
if platform.startswith("ascend"):
    preparing.bring(name="CANN for engines outside containers", plan=plan, part="cann")
preparing.prove(name="what runs is what was installed", plan=plan, names=names)
preparing.agree(name="hosts that work together have the same", plan=plan, names=names)

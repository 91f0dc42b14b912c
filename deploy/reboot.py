"""Restart the hosts that need it, in waves, and none whose units serve unless the inventory says so.

pyinfra inventories/a3-pd.py deploy/reboot.py
"""

from fleet.prepare import reboots
from tasks import guard, preparing
from tasks.edge import host

plan = guard.current_plan()

for wave in host.loop(reboots.waves(plan)):
    preparing.restart(name=f"restart where needed: {', '.join(wave)}", plan=plan, wave=wave)

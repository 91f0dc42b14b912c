"""The firewall, where the inventory asks for one, and nothing else of ``deploy/prepare.py``.

pyinfra inventories/a3-pd.py deploy/firewall.py
"""

from tasks import guard, preparing

plan = guard.current_plan()

preparing.bring(name="sources of packages", plan=plan, part="sources")
preparing.bring(name="firewall", plan=plan, part="firewall")
preparing.prove(name="it is as it should be", plan=plan, names=("firewall",))
preparing.agree(name="hosts that work together have the same", plan=plan, names=("firewall",))

"""Packages, clock, limits and tuning of every host, and nothing else of ``deploy/prepare.py``.

pyinfra inventories/a3-pd.py deploy/base.py
"""

from tasks import guard, preparing

plan = guard.current_plan()

preparing.bring(name="sources of packages", plan=plan, part="sources")
preparing.bring(name="packages, clock and tuning", plan=plan, part="base")
preparing.prove(name="they are as they should be", plan=plan, names=("base",))

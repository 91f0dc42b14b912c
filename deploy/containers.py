"""The container engine, and nothing else of ``deploy/prepare.py``.

pyinfra inventories/a3-pd.py deploy/containers.py
"""

from tasks import guard, preparing

plan = guard.current_plan()

preparing.bring(name="sources of packages", plan=plan, part="sources")
preparing.bring(name="container engine", plan=plan, part="containers")
preparing.prove(name="it is as it should be", plan=plan, names=("containers",))
preparing.agree(name="hosts that work together have the same", plan=plan, names=("containers",))

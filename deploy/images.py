"""The images of the plan, from the bundle, a mirror or the registry, and nothing else of ``deploy/prepare.py``.

pyinfra inventories/a3-pd.py deploy/images.py
"""

from tasks import guard, preparing

plan = guard.current_plan()

preparing.bring(name="images", plan=plan, part="images")
preparing.prove(name="it is as it should be", plan=plan, names=("images",))
preparing.agree(name="hosts that work together have the same", plan=plan, names=("images",))

"""Take a fleet from its inventory to a served model.

    pyinfra inventories/a3-pd.py deploy/serve.py

Run again it changes nothing; after a change of the inventory or the recipe it restarts what the change touches.
"""

from tasks import credentials, engines, guard, releases, survey
from tasks.edge import host

plan = guard.current_plan()
timeout = plan.recipe.start_timeout_seconds

seen = survey.survey(plan)  # None on a host that cannot go on: it has failed, the others go on
release = releases.build(plan, seen) if seen else None

engines.install_proxy_package(plan, seen)
credentials.install(name="certificate and keys of the front door", plan=plan)
releases.install(name="install the release", wanted=release)
for stage in host.loop(plan.start_order):
    names = ", ".join(dict.fromkeys(at.partition("@")[0] for at in stage))
    engines.enough(name=f"enough hosts for {names}", plan=plan)
    engines.start(name=f"start {names}", plan=plan, stage=stage, release=release)
    engines.answer(name=f"wait for {names}", plan=plan, stage=stage, seconds=timeout)
credentials.forget(name="no secret left over", plan=plan)
engines.enough(name="enough hosts to serve", plan=plan)
engines.smoke(name="one completion through the entry", plan=plan)

"""Look at every machine, compare them, and change nothing.

    pyinfra -y inventories/a3-pd.py deploy/preflight.py

Ends with 1 where something would keep the fleet from serving. deploy/serve.py makes the same checks first.
"""

from tasks import guard, survey

survey.preflight(guard.current_plan())

"""From a machine with an operating system to a host that can serve: what to ask it, what to refuse, what to change.

Each module of this package looks after one part. It has the same functions:

``sections(plan, node)``  shell text with ``@@ name`` marks, asked together with that of all others in one command
``parse(sections)``       its state, read from the answer
``refuse(work)``          findings that stop the host before anything of this part is changed
``steps(work)``           what is to be changed, in order; nothing where all is as it should be
``prove(work)``           findings, once all is done: what is still not as it should be

and where hosts must agree ``between(plan, works)``, with the work of each host by its name.

Nothing here connects to anything: ``tasks/preparing.py`` asks, and runs the steps.
"""

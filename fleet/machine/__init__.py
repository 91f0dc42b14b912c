"""Checks of machines: each module asks a host by shell text, reads the answer, and judges it against the plan.

``npu`` and ``gpu`` have the same four functions: ``sections`` (what to ask), ``parse`` (what was answered), ``judge``
(one host), ``between`` (what must agree over hosts); ``devices`` chooses by the plan's platform.
"""

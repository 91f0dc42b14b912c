"""What a waiting person sees: each long step with its name, its usual length and the seconds it has taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]

HEARTBEAT_S = 10.0


def silent(_line: str) -> None:
    """The default for library users: say nothing."""


@contextmanager
def step(say: Say, what: str, usual_s: float = 0.0) -> Iterator[None]:
    """Announce a step, say every ten seconds that it still runs, and how long it took.

    `usual_s` is the time the step takes on a small machine, in seconds; 0 when it is not worth saying.
    """
    start = time.monotonic()
    say(f"{what} ... (usually {usual_s:.0f} s)" if usual_s else f"{what} ...")
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S):
            say(f"  still {what}: {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        say(f"  failed after {time.monotonic() - start:.1f} s: {what}")
        raise
    else:
        say(f"  done in {time.monotonic() - start:.1f} s")
    finally:
        ended.set()
        thread.join()

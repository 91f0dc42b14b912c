#!/usr/bin/env python3
"""Keeps the units of one instance together: written by vllm-fleet, replaced at the next run.

    group.py CONFIG COMMAND...

The members of an instance over several hosts cannot do without each other: ranks without an API neither exit nor
reconnect when their head dies, and a head that lost a rank looks healthy until the next request. So each member's
unit runs its engine under this program, which tells the others at the group's port that it lives:

- it starts the engine only when every member sees every other, with the same settings, so that none waits for one
  that is not there;
- when a member dies, starts anew or cannot be reached, it ends its own engine and exits with 75, which makes systemd
  start the unit again: all members meet again, and start together;
- when its own engine dies first, it says so and exits with the engine's code. The fifth time in two hours it stays
  down (78); deaths for the others' sake do not count.

A start has a token, a meeting an epoch: the hash of all its members' tokens. The members need no leader for it.
Standard library only; any Python from 3.7 on.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

EXIT_PEERS, EXIT_GAVE_UP = 75, 78
POLL_SECONDS = 1.0
ANSWER_SECONDS = 2.0
# A member that answers "nobody here" is gone; one that does not answer may be behind a slow link.
REFUSED_TRIES = 3
SILENT_SECONDS = 15.0
REMIND_SECONDS = 60.0
DEATHS, DEATHS_SECONDS = 5, 7200


def say(text):
    print("group: " + text, flush=True)


def runtime_file(name):
    folder = os.environ.get("RUNTIME_DIRECTORY")
    return os.path.join(folder, name) if folder else None


def write(name, text):
    """A file beside the unit's id, in one step."""
    path = runtime_file(name)
    if path:
        with open(path + ".new", "w") as file:
            file.write(text)
        os.rename(path + ".new", path)


def note(phase, since, text):
    """For whoever asks on this host: the phase, since when, and why."""
    write("group", "%s %d %s\n" % (phase, since, text))


def recent_deaths(settings):
    """When the engine has lately died of itself under these settings; the folder is kept while systemd starts the
    unit again, and systemd may start a new release before the run that brought it does."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        with open(runtime_file("deaths") or os.devnull) as file:
            of, _, times = file.read().partition("\n")
        return [float(word) for word in times.split() if of == settings and now - float(word) < DEATHS_SECONDS]
    except (OSError, ValueError):
        return []


def count_death(settings):
    recent = [*recent_deaths(settings), time.clock_gettime(time.CLOCK_MONOTONIC)]
    write("deaths", settings + "\n" + " ".join("%.0f" % when for when in recent))
    return len(recent)


class Member:
    """This host's part: a token, the epoch that it would form, and the one that it has formed."""

    def __init__(self, config):
        self.config = config
        self.token = uuid.uuid4().hex[:12]
        self.proposal = ""
        self.epoch = ""
        self.dead = False
        self.settings = config.get("settings", "")
        self.deaths = len(recent_deaths(self.settings))
        self.event = threading.Event()  # told to stop, or the engine has ended
        self.stopping = False

    def state(self):
        return {
            "member": self.config["me"],
            "settings": self.settings,
            "token": self.token,
            "proposal": self.proposal,
            "epoch": self.epoch,
            "dead": self.dead,
            "deaths": self.deaths,
        }

    def serve(self):
        """Answer every connection with the state, one line of JSON."""
        address, port = self.config["listen"]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as reason:
            say("cannot listen on %s port %d: %s" % (address, port, reason))
            sys.exit(1)
        listener.listen(64)
        threading.Thread(target=self._answer, args=(listener,), daemon=True).start()

    def _answer(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(0.1)
                continue
            try:
                connection.settimeout(ANSWER_SECONDS)
                connection.sendall((json.dumps(self.state()) + "\n").encode())
                connection.close()
            except OSError:
                pass


def ask(peer):
    """A member's state, or why there is none: ``refused`` or ``silent``."""
    _, address, port = peer
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        with socket.create_connection((address, port), timeout=ANSWER_SECONDS) as connection:
            text = b""
            while not text.endswith(b"\n") and len(text) < 4096:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                part = connection.recv(4096)
                if not part or time.monotonic() > deadline:
                    break
                text += part
        answer = json.loads(text.decode())
        if answer.get("member") != peer[0]:
            return "refused"
        if not all(isinstance(answer.get(key), str) for key in ("settings", "token", "proposal", "epoch")):
            return "refused"
        return answer if isinstance(answer.get("deaths", 0), int) else "refused"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError, AttributeError, RecursionError):
        return "silent"


def epoch_of(tokens):
    return hashlib.sha256(" ".join(sorted(tokens)).encode()).hexdigest()[:12]


def why_not(me, peer, answer):
    """Why a member is not ready to start with this one, or nothing."""
    if answer == "refused":
        return "%s: its unit does not run" % peer[0]
    if answer == "silent":
        return "%s: %s does not answer" % (peer[0], peer[1])
    if answer["settings"] != me.settings:
        return "%s has other settings" % peer[0]
    return ""


def meet(me, peers, pool):
    """Wait until every member sees every other; the tokens of those met, or None when told to stop."""
    told, when, begin = None, 0.0, time.time()
    absent = {}  # since when a member's unit does not run
    while not me.stopping:
        answers = list(pool.map(ask, peers))
        absent = {p[0]: absent.get(p[0], time.time()) for p, a in zip(peers, answers) if a == "refused"}
        missing = [reason for reason in (why_not(me, p, a) for p, a in zip(peers, answers)) if reason]
        if missing:
            me.proposal = ""
        else:
            me.proposal = epoch = epoch_of([me.token] + [a["token"] for a in answers])
            # one that started with others than us will notice, leave and come back
            missing = [
                "%s is still in an earlier start" % p[0]
                for p, a in zip(peers, answers)
                if a["epoch"] not in ("", epoch)
            ]
            missing += ["%s does not see all yet" % p[0] for p, a in zip(peers, answers) if a["proposal"] != epoch]
            if not missing:
                me.epoch = epoch
                dying = ["%s: its engine has died %s times" % (p[0], a.get("deaths")) for p, a in zip(peers, answers)]
                dying = [d for d, a in zip(dying, answers) if a.get("deaths", 0) > 1]
                note("running", time.time(), "; ".join([*dying, epoch]))
                return {p[0]: a["token"] for p, a in zip(peers, answers)}
        if missing != told or time.monotonic() - when > REMIND_SECONDS:
            if told is not None or not all("does not see all yet" in reason for reason in missing):
                say("waiting for " + "; ".join(missing))
            note("waiting", min(absent.values()) if absent else begin, "; ".join(missing))
            told, when = missing, time.monotonic()
        me.event.wait(POLL_SECONDS)
    return None


class Watch:
    """Tells when a member is lost: its token changed, nobody listens any more, or it has been silent for long."""

    def __init__(self, me, met):
        self.me, self.met = me, met
        self.begin = time.monotonic()
        self.refused = dict.fromkeys(met, 0)
        self.heard = dict.fromkeys(met, time.monotonic())

    def lost(self, peer, answer):
        """Why the member is lost, or nothing."""
        name = peer[0]
        if isinstance(answer, dict):
            self.refused[name], self.heard[name] = 0, time.monotonic()
            if answer["token"] != self.met[name]:
                return "%s has started anew" % name
            if answer.get("dead"):
                return "the engine of %s has ended" % name
            if answer["epoch"] not in ("", self.me.epoch):
                return "%s has started with others" % name
            if not answer["epoch"] and time.monotonic() - self.begin > SILENT_SECONDS:
                return "%s has not started" % name
            return ""
        self.refused[name] = self.refused[name] + 1 if answer == "refused" else 0
        if self.refused[name] >= REFUSED_TRIES:
            return "%s is gone" % name
        if time.monotonic() - self.heard[name] > SILENT_SECONDS:
            return "%s has not answered for %d s" % (name, SILENT_SECONDS)
        return ""

    def was_first(self, peers, pool):
        """Whether no other member was dead or gone when this one's engine ended."""
        return all(isinstance(a, dict) and not self.lost(p, a) for p, a in zip(peers, pool.map(ask, peers)))


def end(child, seconds):
    """End the engine and all that it started."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, number)
            child.wait(patience)
            break
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    try:  # what the engine left behind
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def forget_tries(unit):
    """Systemd counts every start; here only the engine's own deaths count."""
    subprocess.call(["systemctl", "reset-failed", unit], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def leave(config, child, reasons):
    """End the engine for the others' sake."""
    say("; ".join(reasons) + ": ending the engine, to start again with all")
    end(child, config["kill_seconds"])
    forget_tries(config["unit"])
    return EXIT_PEERS


def ended(config, me, watch, peers, pool, code):
    """The exit code after the engine has ended by itself."""
    is_own = watch.was_first(peers, pool)
    me.dead = True
    code = 128 - code if code < 0 else code
    forget_tries(config["unit"])
    if not is_own:
        say("the engine ended with %d after another member had: starting again with all" % code)
        return EXIT_PEERS
    deaths = count_death(me.settings)
    say("the engine ended with %d" % code)
    if deaths >= DEATHS:
        say("that was the %dth time within two hours: staying down" % deaths)
        return EXIT_GAVE_UP
    return code


def run(config, command):
    me = Member(config)
    peers = [tuple(p) for p in config["peers"]]

    def stop(number, frame):
        me.stopping = True
        me.event.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    me.serve()
    pool = ThreadPoolExecutor(len(peers))
    met = meet(me, peers, pool)
    if met is None:
        return 0
    say("all %d members are here, epoch %s" % (len(peers) + 1, me.epoch))
    child = subprocess.Popen(command, start_new_session=True)

    def wait_for_it():
        child.wait()
        me.event.set()

    threading.Thread(target=wait_for_it, daemon=True).start()
    watch = Watch(me, met)
    while True:
        me.event.wait(POLL_SECONDS)
        if me.stopping:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)  # it drains as long as systemd lets it
            code = child.wait()
            return 128 - code if code < 0 else code
        if child.poll() is not None:
            return ended(config, me, watch, peers, pool, child.returncode)
        reasons = [r for r in map(watch.lost, peers, pool.map(ask, peers)) if r]
        if reasons and not me.stopping and child.poll() is None:
            return leave(config, child, reasons)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        settings = json.load(file)
    code = run(settings, sys.argv[2:])
    sys.stdout.flush()
    os._exit(code)  # the listening thread has nothing to finish

#!/usr/bin/env python3
"""The front door's handle: written by vllm-fleet, replaced at the next run.

    door.py DIRECTORY status            every backend: its state, and the requests on it
    door.py DIRECTORY out NAME          no new request goes to it; those on it end in peace
    door.py DIRECTORY drained NAME      exit 0 when no request is left on it, else 1; prints how many
    door.py DIRECTORY back NAME         into service again
    door.py DIRECTORY save              remember the states, for a reload

DIRECTORY is the unit's own under /run, which holds its admin socket. Standard library only; any Python from 3.7 on.
"""

import csv
import io
import ipaddress
import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

BACKEND = "service"
WORDS = {"UP": "in service", "DOWN": "down", "DRAIN": "out", "MAINT": "out"}


def fail(text):
    sys.stderr.write("error: %s\n" % text)
    sys.exit(2)


def command(directory, text):
    """HAProxy's answer to one command."""
    path = os.path.join(directory, "admin.sock")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(path)
            connection.sendall(text.encode() + b"\n")
            answer = b""
            while True:
                part = connection.recv(65536)
                if not part:
                    return answer.decode()
                answer += part
    except OSError as reason:
        fail("%s does not answer (%s): is the unit running?" % (path, reason))


def table(directory):
    """Backends by name: state, requests running, requests queued for it."""
    rows = csv.DictReader(io.StringIO(command(directory, "show stat").lstrip("# ")))
    found = {}
    for row in rows:
        if row["pxname"] == BACKEND and row["svname"] not in ("FRONTEND", "BACKEND"):
            word = row["status"].split()[0]
            state = WORDS.get(word, word.lower())
            found[row["svname"]] = (state, int(row["scur"] or 0), int(row["qcur"] or 0))
    return found


def places():
    """(address, port) of every server by (backend, name), as the configuration of the current release says."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "proxy", "haproxy.cfg")
    found, backend = {}, ""
    with open(path) as file:
        for words in (line.split() for line in file):
            if len(words) == 2 and words[0] in ("frontend", "backend"):
                backend = words[1]
            elif len(words) > 2 and words[0] == "server":
                address, _, port = words[2].rpartition(":")
                found[backend, words[1]] = (address.strip("[]"), port)
    return found


def save(directory):
    """Keep the states for a reload; where a server listens is the new configuration's to say."""
    known, lines = places(), []
    for line in command(directory, "show servers state").splitlines():
        fields = line.split(" ")
        if line.startswith("#"):
            port = fields[1:].index("srv_port")
        elif len(fields) > 4:
            if (fields[1], fields[3]) not in known:
                continue
            fields[port] = known[fields[1], fields[3]][1]
        lines.append(" ".join(fields))
    path = os.path.join(directory, "state")
    with open(path + ".new", "w") as file:
        file.write("\n".join(lines) + "\n")
    os.rename(path + ".new", path)


def change(directory, name, verb):
    """Take a backend out, or back, for good: a reload under way may have read the states a moment before."""
    state = "drain" if verb == "out" else "ready"
    tries = steady = 0
    while steady < 5:
        tries += 1
        if tries > 50:
            fail("the front door is reloaded again and again; %s is not %s" % (name, verb))
        if not steady:
            said = command(directory, "set server %s/%s state %s" % (BACKEND, name, state)).strip()
            if said and "disabled" not in said:  # that is the former worker's answer
                fail(said)
            save(directory)
        time.sleep(0.2)
        steady = steady + 1 if is_out(directory, name) == (verb == "out") else 0


def is_out(directory, name):
    """Whether a backend was taken out, also while it is down."""
    for row in (line.split() for line in command(directory, "show servers state").splitlines()):
        if row[1:2] == [BACKEND] and row[3:4] == [name]:
            return bool(int(row[6]) & 0x09)  # set to maintenance, or to drain
    return False


def on_former_workers(directory, name):
    """Requests on a backend that came before the last reload: the workers that still have them answer no longer."""
    worker = re.search(r"^Pid: (\d+)$", command(directory, "show info"), re.MULTILINE).group(1)
    master = parent(worker)
    sockets = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid != worker and parent(pid) == master:
            sockets |= sockets_of(pid)
    address, port = places()[BACKEND, name]
    there = (ipaddress.ip_address(address), int(port))
    return len(sockets & sockets_to(there)) if sockets else 0


def parent(pid):
    try:
        with open("/proc/%s/status" % pid) as file:
            return re.search(r"^PPid:\s*(\d+)$", file.read(), re.MULTILINE).group(1)
    except OSError:
        return None


def sockets_of(pid):
    """Inodes of a process's sockets; none of one that has just ended."""
    found, folder = set(), "/proc/%s/fd" % pid
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            found.add(os.readlink(os.path.join(folder, name)))
        except OSError:
            pass
    return {link[8:-1] for link in found if link.startswith("socket:[")}


def sockets_to(there):
    """Inodes of the sockets that are connected, or about to be, to an address and port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            address, _, port = row[2].partition(":")
            if row[3] in ("01", "02") and (as_address(address), int(port, 16)) == there:
                found.add(row[9])
    return found


def as_address(digits):
    """An address from the kernel's table: words in the machine's order of bytes."""
    words = (int(digits[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(digits), 8))
    found = ipaddress.ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found


def router(directory):
    """Address of the router behind the door and its replicas by name, where there is one."""
    try:
        with open(os.path.join(directory, "router.json")) as file:
            return json.load(file)
    except OSError:
        return None


def http(method, url, seconds=10):
    request = urllib.request.Request(url, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=seconds) as answer:
        return answer.read().decode()


def ask_router(method, url, seconds=10):
    """The router's answer; without one nothing can be said."""
    try:
        return http(method, url, seconds)
    except urllib.error.HTTPError as answer:
        fail("%s answers %d: %s" % (url, answer.code, " ".join(answer.read().decode(errors="replace").split())[:200]))
    except (OSError, ValueError) as reason:
        fail("%s does not answer: %s" % (url, reason))


def listed(known):
    """The replicas that the router has, by their address."""
    workers = json.loads(ask_router("GET", known["router"] + "/workers"))["workers"]
    return {w["url"].rstrip("/") for w in workers}


def change_routed(known, name, verb):
    """Take a replica off the router's list, or put it back, for which it has to prove its health within 30 s."""
    url = known["replicas"][name]
    if (url in listed(known)) == (verb == "out"):
        path = "/remove_worker?url=" if verb == "out" else "/add_worker?url="
        ask_router("POST", known["router"] + path + urllib.parse.quote(url, safe=""), 60)


def requests_on(url):
    """Requests that a replica runs or has waiting, by its own figures; None for one that is dead: it has none.

    One that hangs may have some: that is an error of its own.
    """
    total = 0.0
    try:
        lines = http("GET", url + "/metrics").splitlines()
    except (OSError, ValueError) as reason:
        if isinstance(getattr(reason, "reason", reason), socket.timeout):
            raise
        return None
    for line in lines:
        if line.split("{")[0] in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            total += float(line.rsplit(" ", 1)[1])
    return int(total)


def routed(directory):
    """As ``table``, for replicas behind a router."""
    known = router(directory)
    there = listed(known)
    found = {}
    for name, url in known["replicas"].items():
        count = requests_on(url)
        state = "out" if url not in there else "down" if count is None else "in service"
        found[name] = (state, count or 0, 0)
    return found


def main(directory, verb, name=None):
    behind = router(directory)
    if verb == "save":
        save(directory)
        return 0
    names = behind["replicas"] if behind else table(directory)
    if verb != "status" and name not in names:
        fail("there is no backend %s; there are: %s" % (name, ", ".join(sorted(names))))
    if verb == "status":
        found = routed(directory) if behind else table(directory)
        for key in found:
            print("%s\t%s\t%d\t%d" % ((key,) + found[key]))
        return 0
    if verb in ("out", "back"):
        if behind:
            change_routed(behind, name, verb)
            return 0
        change(directory, name, verb)
        return 0
    if verb == "drained":
        if behind:
            left = requests_on(names[name]) or 0
        else:
            left = sum(table(directory)[name][1:]) + on_former_workers(directory, name)
        print(left)
        return 1 if left else 0
    fail("unknown verb %s; see the head of %s" % (verb, __file__))


if __name__ == "__main__":
    if len(sys.argv) < 3 or (sys.argv[2] not in ("status", "save") and len(sys.argv) < 4):
        sys.stderr.write(__doc__)
        sys.exit(2)
    try:
        sys.exit(main(*sys.argv[1:4]))
    except (OSError, ValueError, KeyError, AttributeError) as reason:  # what it reads is not what it should be
        fail("%s: %s" % (type(reason).__name__, reason))

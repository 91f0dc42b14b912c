"""The images of the host's units: loaded from the bundle's tar, else pulled; the same over an instance."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet import versions
from fleet.findings import Finding, error
from fleet.inventory import Node
from fleet.machine import scope
from fleet.machine.docker import ARCHITECTURES
from fleet.prepare.common import BROUGHT, KEPT, Outcome, Source, Step, Work, plain
from fleet.topology import Plan

PULL_SECONDS, LOAD_SECONDS = 3 * 3600, 3600
# What an image may take once unpacked, for each byte of its tar: of a compressed one, and of one that is not.
_UNPACKED, _UNCOMPRESSED = 3.0, 1.2
_INSPECT = "{{.Id}} {{.Architecture}}{{range .RepoDigests}} {{.}}{{end}}"


@dataclass(frozen=True)
class Image:
    """One image of the host. ``digests`` are its registries'; a loaded one has none with Docker's usual store."""

    id: str
    arch: str  # as Docker says it: amd64, arm64
    digests: frozenset[str] = frozenset()

    @property
    def forms(self) -> frozenset[str]:
        """All that it can be told by: ids of one image differ between Docker's ways to store it."""
        return self.digests | {self.id}


@dataclass(frozen=True)
class State:
    """Of the images that the plan has here, those that are there. Sizes in bytes, None where it is not known."""

    images: Mapping[str, Image] = field(default_factory=dict)
    root: str = ""
    root_free: int | None = None
    kept_free: int | None = None  # where files are brought
    same_disk: bool = False  # both below one mount point


def wanted(plan: Plan, node: Node) -> tuple[str, ...]:
    """Images of the host's units, in order."""
    return tuple(sorted({u.image for u in scope.in_docker(plan, node) if u.image}))


def sections(plan: Plan, node: Node) -> list[str]:
    """Only what the plan has here; each call ends by itself when the daemon hangs."""
    names = wanted(plan, node)
    if not names:
        return []
    quoted = " ".join(shlex.quote(name) for name in names)
    return [
        f"echo '@@ prepareimages'; for i in {quoted}; do "
        f"d=$(timeout -k 2 20 docker image inspect -f '{_INSPECT}' \"$i\" 2>/dev/null </dev/null) && "
        'echo "image $i $d"; done; '
        "r=$(timeout -k 2 20 docker info -f '{{.DockerRootDir}}' 2>/dev/null </dev/null); "
        'test -d "${r:=/var/lib/docker}" || r=/var/lib; '
        f"k={KEPT}; test -d $k || k=/var/lib; "
        'for p in "root $r" "kept $k"; do echo "$p $(df -Pk "${p#* }" 2>/dev/null | sed -n 2p)"; done',
    ]


def parse(sections: Mapping[str, list[str]]) -> State:
    """What was answered."""
    images: dict[str, Image] = {}
    disks: dict[str, tuple[str, str, int | None]] = {}
    for words in (line.split() for line in sections.get("prepareimages", [])):
        if words[0] == "image" and len(words) > 3:
            images[words[1]] = Image(words[2], words[3], frozenset(d.rpartition("@")[2] for d in words[4:]))
        elif words[0] in ("root", "kept") and len(words) > 7:
            disks[words[0]] = (words[1], words[-1], int(words[5]) * 1024 if words[5].isdigit() else None)
    root, kept = disks.get("root", ("", "", None)), disks.get("kept", ("", "?", None))
    return State(images, root[0], root[2], kept[2], root[1] == kept[1])


def safe_name(image: str) -> str:
    """An image's name as part of a file's: ``quay.io/ascend/vllm-ascend:v0.13.0-a3`` ->
    ``quay.io_ascend_vllm-ascend_v0.13.0-a3``."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", image)


def tar_name(image: str, arch: str = "") -> str:
    """What an image's tar is called in a bundle; it may be compressed, with .gz, .xz or .zst after it.

    ``arch`` (amd64, arm64) is part of it where a bundle has an image for both.
    """
    return f"{safe_name(image)}{'.' if arch else ''}{arch}.tar"


def digest_of(work: Work, image: str) -> str | None:
    """The digest that the image must have: its name's own, or that of the catalogue's row; None where none is known.

    A mirror of the inventory keeps digests.
    """
    if "@" in image:
        return image.rpartition("@")[2]
    stack, mirror = work.stack, work.node.settings.registry_mirror
    plain_name = image.removeprefix(f"{mirror.rstrip('/')}/") if mirror else image
    return stack.digest if stack and stack.image in (image, plain_name) else None


def _arch(work: Work) -> str:
    return ARCHITECTURES.get(work.host.arch, work.host.arch)


def _fault(work: Work, name: str, image: Image | None) -> Finding | None:
    """Why an image is not the one that is wanted; None where it is."""
    ours, digest = _arch(work), digest_of(work, name)
    if image is None:
        mend = f"docker pull {name}, or docker load it from a file"
        return error("IMAGE-MISSING", work.name, f"image {name} is not on this host", mend)
    if ours and image.arch != ours:
        what = f"image {name} is for {image.arch}, the host is {ours}"
        mend = f"docker pull --platform linux/{ours} {name}"
        return error("IMAGE-ARCH", work.name, what, mend, "it ends with exec format error")
    if digest and image.digests and digest not in image.forms:
        what = f"image {name} has the digest {min(image.digests)[:19]}, {digest[:19]} is wanted"
        mend = f"docker rmi {name}, and run again"
        return error("IMAGE-DIGEST", work.name, what, mend, "the tag was pushed again, or this is another image")
    return None


def _wrong(work: Work) -> list[tuple[str, Image | None]]:
    state: State = work.states["images"]
    pairs = [(name, state.images.get(name)) for name in wanted(work.plan, work.node)]
    return [(name, image) for name, image in pairs if _fault(work, name, image)]


def _tar(work: Work, image: str) -> Source | None:
    """The image's file: for the host's own processor before one that names none."""
    names = (tar_name(image, _arch(work)), tar_name(image))
    return next((found for name in names if (found := work.find(f"{name}*"))), None)


def refuse(work: Work) -> list[Finding]:
    """Disks that are too small for what is to be brought and unpacked. What is pulled tells no size beforehand."""
    state: State = work.states["images"]
    brought = unpacked = 0
    for name, _ in _wrong(work):
        if tar := _tar(work, name):
            brought += tar.size if tar.upload and tar.path not in work.host.files else 0
            unpacked += int(tar.size * (_UNCOMPRESSED if tar.name.endswith(".tar") else _UNPACKED))
    needs = [(state.root, state.root_free, unpacked + brought * state.same_disk)]
    needs += [] if state.same_disk else [(KEPT, state.kept_free, brought)]
    mend = "free some space there (docker system prune), or move it to a larger disk (data-root in docker_config)"
    return [
        error("IMAGE-DISK", work.name, f"{place} has {_gb(free)} left, images need {_gb(size)}", mend)
        for place, free, size in needs
        if free is not None and free < size
    ]


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def steps(work: Work) -> list[Step]:
    """One for each image that is not there, or is another than it should be."""
    return [_load(work, n, tar) if (tar := _tar(work, n)) else _pull(work, n, image) for n, image in _wrong(work)]


def _why(work: Work, name: str) -> str:
    state: State = work.states["images"]
    image = state.images.get(name)
    fault = _fault(work, name, image)
    return "there is none" if image is None or fault is None else fault.what.removeprefix(f"image {name} ")


def _load(work: Work, name: str, tar: Source) -> Step:
    quoted = shlex.quote(name)
    script = f"""export LC_ALL=C
{tar.check()}
b=$(docker image inspect -f '{{{{.Id}}}}' {quoted} 2>/dev/null </dev/null)
said=$(timeout -k 10 {LOAD_SECONDS} docker load -q -i {shlex.quote(tar.path)} 2>&1 </dev/null)
rc=$?; printf '%s\\n' "$said"; [ $rc -eq 0 ] || exit $rc
a=$(docker image inspect -f '{{{{.Id}}}}' {quoted} 2>/dev/null </dev/null) || {{ echo 'other images'; exit 4; }}
case $said in *{_in_pattern(name)}*) ;; *) [ "$a" != "$b" ] || {{ echo 'other images'; exit 4; }};; esac
"""
    # What we brought is in Docker now, and would fill the disk a second time.
    script += f"rm -f {shlex.quote(tar.path)}" if tar.path.startswith(f"{BROUGHT}/") else "true"
    title = f"image {name} loaded from {tar.name} ({_why(work, name)})"
    return Step(title, script, LOAD_SECONDS + 120, sources=(tar,), read=_reader(work, name, tar.name))


def _in_pattern(name: str) -> str:
    """A name as text of a shell's pattern."""
    return f'"{name}"'


def _pull(work: Work, name: str, there: Image | None) -> Step:
    """By digest where it is known, so that a tag that was pushed again brings no other image; then it gets its tag."""
    digest, its = digest_of(work, name), versions.image(name)
    exact = f"{its.repository}@{digest}" if digest else name
    # Docker before 20.10 takes it only with experimental features: said only where the wrong one came.
    platform = f"--platform linux/{_arch(work)} " if there and there.arch != _arch(work) else ""
    tag = f"docker tag {shlex.quote(exact)} {shlex.quote(name)}" if digest and "@" not in name else "true"
    script = f"""export LC_ALL=C
said=$(mktemp) && trap 'rm -f "$said"' EXIT
i=0
while :; do
  {{ timeout -k 10 {PULL_SECONDS} docker pull {platform}{shlex.quote(exact)} 2>&1 </dev/null; echo "rc $?"; }} |
    grep --line-buffered -v -e 'Pulling fs layer' -e ': Waiting' -e 'Verifying Checksum' | tee "$said" |
    grep --line-buffered -v '^rc [0-9]*$'
  rc=$(sed -n 's/^rc //p' "$said")
  [ "$rc" = 0 ] && break
  i=$((i + 1))
  [ $i -lt 3 ] && [ "${{rc:-124}}" -lt 124 ] && ! grep -q {_FINAL} "$said" || exit "${{rc:-1}}"
  sleep 10
done
{tag}"""
    title = f"image {name} pulled ({_why(work, name)})"
    return Step(title, script, PULL_SECONDS + 120, read=_reader(work, name))


# Tried again these would fail again.
_FINAL = (
    "-e 'manifest unknown' -e 'not found' -e unauthorized -e denied -e 'no space left' -e 'invalid tar header' "
    "-e 'no matching manifest' -e toomanyrequests -e x509 -e 'server gave HTTP'"
)
# What Docker says, what that means, and how to mend it; {tar} is the file's name in a bundle, {registry} the host.
_CAUSES = (
    (r"no space left", "the disk is full", "free some space (docker system prune), or move data-root"),
    (
        r"invalid tar header",
        "Docker on this system cannot unpack what it pulls (known of Kylin)",
        "put it into the bundle as {tar}: docker load works there",
    ),
    (
        r"x509|certificate|tls:|server gave HTTP response",
        "the registry's certificate is not trusted",
        "put its CA into /etc/docker/certs.d/{registry}/ca.crt, or name it among insecure-registries in docker_config",
    ),
    (
        r"toomanyrequests|rate limit",
        "the registry lets nobody pull more just now",
        "docker login {registry} on the host, or set registry_mirror",
    ),
    (r"no matching manifest", "the registry has it for other processors only", "name another image"),
    (
        r"unauthorized|authentication required|denied",
        "the registry refuses it, or does not have it",
        "see that the name is right; docker login {registry} on the host where it wants a password",
    ),
    (
        r"manifest unknown|not found|does not exist",
        "the registry does not have it",
        "mend image in recipe or inventory",
    ),
    (
        r"no such host|[Tt]emporary failure|i/o timeout|TLS handshake timeout|connection refused|no route to host|"
        r"network is unreachable|context deadline|Client\.Timeout|proxyconnect|connection reset|unexpected EOF",
        "the registry is not reached",
        "put it into the bundle as {tar}, or set registry_mirror or docker_proxy",
    ),
)


def _reader(work: Work, name: str, tar: str = "") -> Callable[[bool, Sequence[str]], Outcome]:
    def read(well: bool, lines: Sequence[str]) -> Outcome:
        return Outcome() if well else Outcome((cause(work.name, name, lines, tar),))

    return read


def cause(host: str, name: str, lines: Sequence[str], tar: str = "") -> Finding:
    """Why an image did not come, by what Docker said."""
    said = [re.sub(r"://\S*@", "://***@", line.strip()) for line in plain(lines) if line.strip()]
    verb = f"loaded from {tar}" if tar else "pulled"
    what = f"image {name} could not be {verb}"
    if said and said[-1] == "other images":
        held = [line.partition(": ")[2] for line in said if line.startswith("Loaded image")]
        what = f"{tar} does not hold image {name}, but {', '.join(held) or 'an image without a name'}"
        mend = "save it by the name that the plan has: docker save NAME:TAG; by a digest alone none can be saved"
        return error("IMAGE-PULL", host, what, mend)
    text = "\n".join(said)
    if tar and re.search(r"checksum of .* differs|unexpected EOF|invalid tar|gzip: invalid", text):
        mend = f"copy images/{tar} into the bundle again; docker save makes one"
        return error("IMAGE-PULL", host, f"{what}: the file is damaged", mend, said[-1][:300])
    registry = name.partition("/")[0] if re.match(r"[^/]*[.:][^/]*/", name) else "docker.io"
    for pattern, told, mend in _CAUSES:
        # Only the registry's certificate is meant, not a slow handshake.
        if re.search(pattern, text.replace("TLS handshake timeout", "i/o timeout")):
            mend = mend.format(tar=f"images/{tar_name(name)}", registry=registry)
            return error("IMAGE-PULL", host, f"{what}: {told}", mend, said[-1][:300])
    last = said[-1][:300] if said else "no end in time, without a word"
    return error(
        "IMAGE-PULL", host, f"{what}: {last}", f"put it into the bundle as images/{tar_name(name)}, or mend that"
    )


def prove(work: Work) -> list[Finding]:
    """Each image is there, for this processor, with the digest that is wanted."""
    state: State = work.states["images"]
    found = (_fault(work, name, state.images.get(name)) for name in wanted(work.plan, work.node))
    return [fault for fault in found if fault]


def between(plan: Plan, works: Mapping[str, Work]) -> list[Finding]:
    """Hosts of one instance whose image of the same name is another than the head's."""
    findings = []
    for instance in plan.instances:
        head = instance.head.name
        its = _serving(plan, works, head)
        for member in instance.members[1:]:
            theirs = _serving(plan, works, member.node.name)
            for name in sorted(set(its) & set(theirs)):
                if not its[name].forms & theirs[name].forms:
                    what = f"image {name} is {_shown(theirs[name])}, {head}, the head of {instance.name}, has "
                    mend = "docker rmi it on both and run again, or give the image by its digest"
                    why = "collectives hang, or fail with a version mismatch"
                    findings.append(error("IMAGE-DIFFERS", member.node.name, what + _shown(its[name]), mend, why))
    return findings


def _serving(plan: Plan, works: Mapping[str, Work], host: str) -> dict[str, Image]:
    if host not in works:
        return {}
    state: State = works[host].states["images"]
    names = {unit.image for unit in plan.units_of(host) if unit.serves_model}
    return {name: image for name, image in state.images.items() if name in names}


def _shown(image: Image) -> str:
    return min(image.digests or {image.id})[:19]

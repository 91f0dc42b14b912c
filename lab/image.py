"""The stand-in image: what containers on dressed hosts run instead of the vendors' images of many gigabytes.

A small root file system out of the hosts' own (bash, coreutils, python3, curl, ip), and over it the stand-in engine at
/opt/standin. The archive is written here in Docker's own format, with fixed times and order, so that the same
content has the same image id on every host; `docker import` would stamp each with the time. All names share the two
layers: a name costs a kilobyte.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.cache import build_once, cache_dir
from lab.errors import LabError
from lab.fleet import Lab
from lab.progress import Say, silent, step
from lab.rootfs import ensure_rootfs

ROOT = Path(__file__).parent.parent
BUILDER_VERSION = "1"
PACKAGES = (
    *("bash", "coreutils", "curl", "dash", "debianutils", "findutils", "grep", "hostname"),
    *("iproute2", "mawk", "procps", "python3", "sed"),
)
# Wanted by some package's own scripts or data, by nothing that runs here.
LEFT_OUT = {"debconf", "perl-base", "dpkg", "tar", "init-system-helpers", "passwd", "base-passwd", "libdb5.3"}
PRUNED = re.compile(
    r"/usr/share/(doc|man|locale|info|lintian|bash-completion|bug|common-licenses|perl5|pixmaps|applications|mime)\b"
    r"|/gconv/|/usr/lib/python3[.\d]*/(test|idlelib|lib2to3|ensurepip|pydoc_data|turtledemo|tkinter|distutils)\b"
)
STANDIN = "/opt/standin"
PROXY = "/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py"
# Parts of this repository that the stand-in needs, and where they lie in the image.
PARTS = {
    "lab/standin": STANDIN,
    "fleet/flags": f"{STANDIN}/flags",
    "files/flags": f"{STANDIN}/flags-tables",
}
# The vendors' images set the toolkit's paths for interactive shells alone, below Ubuntu's guard.
BASHRC = f"""\
[ -z "$PS1" ] && return
export PATH={STANDIN}/bin:$PATH
export VLLM_LAB_BASHRC=read
"""
TEXTS = {
    "/root/.bashrc": BASHRC,
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
LINKS = {
    "/usr/bin/python": "python3",
    "/usr/bin/awk": "mawk",
    "/usr/bin/which": "which.debianutils",
    "/usr/local/bin/vllm": f"{STANDIN}/bin/vllm",
    "/usr/local/bin/ray": f"{STANDIN}/bin/ray",
    PROXY: f"{STANDIN}/ascend/load_balance_proxy_server_example.py",
}
FOLDERS = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp", "/mnt", "/workspace", "/root/.cache")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEEP = 3  # archives in the cache; each has 70 MB, and another checkout may have its own
AT_ONCE = 4
ON_HOST = "/var/lib/docker/vllm-lab-image.tar"


def load_image(lab: Lab, hosts: Sequence[str], images: Mapping[str, str], say: Say = silent) -> dict[str, str]:
    """Load the stand-in image under the given names on each host, all at once; a host that has them is left alone.

    `images` maps names to engine versions: {"quay.io/ascend/vllm-ascend:v0.13.0-a3": "0.13.0"}. Returns the image
    id of each name, the same on all hosts. Raises LabError.
    """
    archive = ensure_image(say)
    layers = read_layers(archive)
    configs = {name: config(version, layers, name) for name, version in images.items()}
    with (
        step(say, f"loading {len(images)} images on {len(hosts)} hosts", usual_s=3),
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        list(pool.map(lambda host: load(lab, host, archive, configs, layers), hosts))
    return {name: f"sha256:{digest(text)}" for name, text in configs.items()}


def load(lab: Lab, host: str, archive: Path, configs: Mapping[str, bytes], layers: Sequence[str]) -> None:
    """Load what one host lacks: the layers if no image has them yet, and the names."""
    wanted = " ".join(f"sha256:{digest(text)}" for text in configs.values())
    # A host that has just booted answers ssh before Docker is ready; starting it waits for that.
    show = f"docker image inspect -f '{{{{.Id}}}}' {' '.join(configs)} 2>/dev/null | tr '\\n' ' '"
    have = ask(lab, host, f"systemctl start docker; {show}; true")
    if have.strip() == wanted:
        return
    # Docker's data lies outside the host's overlay, on the cache's file system as a rule: a link, not a copy.
    place = lab.files(host).docker / Path(ON_HOST).name
    place.unlink(missing_ok=True)
    try:
        os.link(archive, place)
    except OSError:
        shutil.copy(archive, place)
    try:
        names = base64.b64encode(names_archive(configs, layers)).decode()
        done = f"docker load -q -i {ON_HOST} && base64 -d <<'END' | docker load -q\n{names}\nEND"
        ask(lab, host, done)
    finally:
        place.unlink(missing_ok=True)


def ask(lab: Lab, host: str, command: str) -> str:
    """Output of a command that must succeed."""
    done = lab.ssh(host, command, timeout=180)
    if done.returncode:
        raise LabError(f"host {host}: loading the stand-in image failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def ensure_image(say: Say = silent) -> Path:
    """The archive with both layers for `docker load`, made on the first call (10 s, 70 MB) and after each change."""
    rootfs = ensure_rootfs(say=say)
    folder = cache_dir() / "images"
    recipe = (BUILDER_VERSION, rootfs.name, *PACKAGES, *sorted(LEFT_OUT), PRUNED.pattern)
    base = build_once(
        folder / f"base-{digest(' '.join(recipe).encode())[:10]}.tar", lambda to: write_base(rootfs, to, say)
    )
    code = top_layer()
    key = digest(base.name.encode() + code)[:10]

    def write(target: Path) -> None:
        for family in ("base", "standin"):
            made = sorted(folder.glob(f"{family}-??????????.tar"), key=lambda path: path.stat().st_mtime)
            for old in made[: -KEEP + 1]:
                if old != base:
                    old.unlink(missing_ok=True)
        with target.open("wb") as file:
            write_archive(file, base, code)

    return build_once(folder / f"standin-{key}.tar", write)


# Layers


def write_base(rootfs: Path, target: Path, say: Say) -> None:
    """The layer with the packages."""
    with step(say, "making the stand-in image", usual_s=8), target.open("wb") as file, tar(file) as layer:
        for folder in FOLDERS:
            add_folder(layer, folder)
        for path in package_files(rootfs):
            source = rootfs / path.lstrip("/")
            entry = layer.gettarinfo(str(source), path.lstrip("/"))
            # Times stay: Python's compiled modules remember those of their sources.
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = int(entry.mtime)
            if entry.isreg():
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", source.stat().st_size
                with source.open("rb") as content:
                    layer.addfile(entry, content)
            else:
                layer.addfile(entry)


def package_files(rootfs: Path) -> list[str]:
    """Every path of the wanted packages, folders before what is in them, at the place where it really lies."""
    found: set[str] = {"/bin", "/sbin", "/lib", "/lib64"}
    for package in closure((rootfs / "var/lib/dpkg/status").read_text(), PACKAGES):
        info = rootfs / "var/lib/dpkg/info"
        listing = next((path for name in (f"{package}.list", f"{package}:*.list") for path in info.glob(name)), None)
        if listing is None:
            raise LabError(f"{rootfs} has no list of the files of {package}; remove that folder and try again")
        for path in listing.read_text().splitlines():
            found |= real(rootfs, path)
    return sorted(path for path in found if path != "/" and not PRUNED.search(path) and path not in FOLDERS)


def real(rootfs: Path, path: str) -> set[str]:
    """A package's path as it lies on a system whose /bin is a link to /usr/bin, with a module's compiled form."""
    for old in ("/bin/", "/sbin/", "/lib/", "/lib64/"):
        if path.startswith(old) and (rootfs / old.strip("/")).is_symlink():
            path = f"/usr{path}"
    place = rootfs / path.lstrip("/")
    if not (place.exists() or place.is_symlink()) or path in ("/bin", "/sbin", "/lib", "/lib64"):
        return set()
    compiled = place.parent / "__pycache__"
    if place.suffix != ".py" or not compiled.is_dir():
        return {path}
    inside = [str(file.relative_to(rootfs)) for file in compiled.glob(f"{place.stem}.*.pyc")]
    return {path, f"/{compiled.relative_to(rootfs)}", *(f"/{name}" for name in inside)}


def closure(status: str, wanted: Iterable[str]) -> list[str]:
    """The packages and all that they depend on, by dpkg's own list."""
    needs: dict[str, str] = {}
    providers: dict[str, str] = {}
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", stanza, re.MULTILINE))
        if "Package" in fields:
            needs[fields["Package"]] = f"{fields.get('Depends', '')},{fields.get('Pre-Depends', '')}"
            providers |= {name: fields["Package"] for name in words(fields.get("Provides", ""))}
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        name = name if name in needs else providers.get(name, "")
        if name and name not in found and name not in LEFT_OUT:
            found.add(name)
            todo += words(needs[name])
    return sorted(found)


def words(relations: str) -> list[str]:
    """The first alternative of each relation: `libc6 (>= 2.36), gawk | mawk` as [libc6, gawk]."""
    return [match[0] for part in relations.split(",") if (match := re.match(r"[\w.+-]+", part.strip()))]


def top_layer() -> bytes:
    """The layer with the stand-in and a few files, as tar."""
    content = io.BytesIO()
    with tar(content) as layer:
        for path, source in sorted(repository_files()):
            add_file(layer, path, source.read_bytes(), 0o755 if os.access(source, os.X_OK) else 0o644)
        for path, text in TEXTS.items():
            add_file(layer, path, text.encode(), 0o644)
        for path, target in LINKS.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            layer.addfile(entry)
    return content.getvalue()


def repository_files() -> Iterator[tuple[str, Path]]:
    """Files of this repository with their paths in the image."""
    for part, place in PARTS.items():
        source = ROOT / part
        for path in [source] if source.is_file() else sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield (place if path == source else f"{place}/{path.relative_to(source)}"), path


def tar(file: io.BufferedIOBase | io.BytesIO) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT)


def add_folder(layer: tarfile.TarFile, path: str) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path.endswith("tmp") else 0o755
    layer.addfile(entry)


def add_file(layer: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.size, entry.mode = len(content), mode
    layer.addfile(entry, io.BytesIO(content))


# Docker's archive


def write_archive(file: io.BufferedIOBase, base: Path, code: bytes) -> None:
    """Both layers under a name of the lab's own."""
    layers = [file_digest(base), digest(code)]
    text = config("", layers, "")
    with tar(file) as archive:
        add_file(archive, "manifest.json", manifest({"vllm-lab/standin:latest": text}, layers))
        add_file(archive, f"{digest(text)}.json", text)
        entry = tarfile.TarInfo(f"{layers[0]}.tar")
        entry.size = base.stat().st_size
        with base.open("rb") as content:
            archive.addfile(entry, content)
        add_file(archive, f"{layers[1]}.tar", code)


def light_archive(images: Mapping[str, str]) -> bytes:
    """An archive as `docker save` writes it, of images with the stand-in's own layer alone: to load, not to run."""
    code = top_layer()
    layers = [digest(code)]
    return names_archive({name: config(version, layers, name) for name, version in images.items()}, layers, code)


def names_archive(configs: Mapping[str, bytes], layers: Sequence[str], *contents: bytes) -> bytes:
    """Further names for layers that Docker has: it looks for a layer's file only when it lacks the layer.

    `contents` are those of the first layers, for a Docker that has none of them.
    """
    content = io.BytesIO()
    with tar(content) as archive:
        add_file(archive, "manifest.json", manifest(configs, layers))
        for text in sorted(set(configs.values())):
            add_file(archive, f"{digest(text)}.json", text)
        for layer, layer_content in zip(layers, contents, strict=False):
            add_file(archive, f"{layer}.tar", layer_content)
    return content.getvalue()


def manifest(configs: Mapping[str, bytes], layers: Sequence[str]) -> bytes:
    """What is in an archive; names of the same image stand together."""
    named: dict[bytes, list[str]] = {}
    for name, text in configs.items():
        named.setdefault(text, []).append(name)
    files = [f"{layer}.tar" for layer in layers]
    entries = [{"Config": f"{digest(t)}.json", "RepoTags": names, "Layers": files} for t, names in named.items()]
    return json.dumps(entries).encode()


def config(version: str, layers: Sequence[str], name: str) -> bytes:
    """An image's configuration; its hash is the image's id."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    env = [f"PATH={PATH}", *([f"VLLM_STANDIN_VERSION={version}"] if version else []), *family_env(name, version)]
    content = {
        "architecture": machine,
        "os": "linux",
        "created": "2020-01-01T00:00:00Z",
        "config": {"Env": env, "Cmd": ["/bin/bash"], "WorkingDir": "/workspace"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}" for layer in layers]},
        "history": [{"created": "2020-01-01T00:00:00Z"} for _ in layers],
    }
    return json.dumps(content, sort_keys=True).encode()


def family_env(name: str, version: str) -> list[str]:
    """What tells a vendor's image for one machine from that for another."""
    if "vllm-ascend" in name:
        return [f"SOC_VERSION={'ascend910_9391' if '-a3' in name else 'ascend910b1'}"]
    if "vllm-openai" in name:
        # Unsuffixed tags are built on CUDA 13 from 0.20 on.
        major_minor = [int(part) for part in re.findall(r"\d+", version)[:2]]
        newer = major_minor >= [0, 20] and "-cu12" not in name
        return [f"CUDA_VERSION={'13.0.1' if newer else '12.9.1'}"]
    return []


def read_layers(archive: Path) -> list[str]:
    """The layers of an archive that `ensure_image` made."""
    with tarfile.open(archive) as opened:
        content = opened.extractfile("manifest.json")
        assert content is not None
        return [name.removesuffix(".tar") for name in json.load(content)[0]["Layers"]]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def recipe_images(family: str) -> dict[str, str]:
    """The images that the shipped recipes of a machine family name, with their engine versions."""
    from fleet import FILES, recipe
    from fleet.platforms import PLATFORMS

    found = {}
    for path in sorted((FILES / "recipes").rglob("*.yaml")):
        known = recipe.load(path)
        if known.platform == family and (name := PLATFORMS[family].image(known.engine)):
            found[name] = known.engine.vllm
    return found

"""Images against machine family, engine, CUDA and driver, and against each other."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from fleet import versions
from fleet.checks import look
from fleet.findings import Finding, error, warning
from fleet.topology import Plan


def images(plan: Plan) -> dict[str, list[str]]:
    """Each image of the plan with the hosts that run it."""
    found: dict[str, dict[str, None]] = {}
    for unit in plan.units:
        if unit.image:
            found.setdefault(unit.image, {})[unit.host] = None
    return {name: list(found[name]) for name in sorted(found)}


def _where(plan: Plan, hosts: list[str]) -> str:
    """The hosts where the inventory names the image, else the recipe."""
    theirs = set(hosts)
    own = [node.name for node in plan.fleet.nodes if node.settings.image and node.name in theirs]
    if len(own) == len(plan.fleet.nodes):
        return plan.fleet.source
    return look.hosts(plan, own) if own else plan.fleet.recipe


def needs_new_driver(plan: Plan) -> Iterator[Finding]:
    """vllm/vllm-openai without suffix is built on CUDA 13 from 0.20.0 on."""
    for name, hosts in images(plan).items():
        cuda = versions.cuda_of(name, plan.recipe.engine.vllm)
        if cuda is None or cuda[0] < 13 or any(w.startswith("cu") for w in versions.image(name).words):
            continue
        yield warning(
            "IMAGE-CUDA",
            _where(plan, hosts),
            f"{name} is built on CUDA {'.'.join(map(str, cuda))}, which needs a driver of the "
            f"R{versions.driver_branch_for(cuda)} class",
            f"set engine.image: {name.partition('@')[0]}-cu129 for older drivers",
            "from 0.20.0 on the tag without a suffix is CUDA 13",
            "vLLM release notes 0.20.0",
        )


def of_another_family(plan: Plan) -> Iterator[Finding]:
    """An image is built for one machine family; on another its kernels do not load."""
    for name, hosts in images(plan).items():
        its = versions.image(name)
        family = its.platform or ("nvidia" if its.short == "vllm-openai" else None)
        if family and family != plan.recipe.platform:
            yield error(
                "IMAGE-FAMILY",
                _where(plan, hosts),
                f"{name} is made for {family}, the recipe is for {plan.recipe.platform}",
                _family_mend(its, plan.recipe.platform),
                "the start ends with: the socversion of bin package does not match the current device socversion"
                if family.startswith("ascend") and plan.recipe.platform.startswith("ascend")
                else "it finds no device",
                "vllm-ascend installation guide; vllm-ascend issue 6676",
            )


def _family_mend(its: versions.Image, platform: str) -> str:
    suffix = {"ascend-a2": "without the suffix -a3", "ascend-a3": "with the suffix -a3"}.get(platform)
    return f"choose the tag {suffix}" if suffix and its.short == "vllm-ascend" else "leave engine.image and image out"


def of_another_version(plan: Plan) -> Iterator[Finding]:
    """The tag names another engine than the one that the arguments are written for."""
    engine = plan.recipe.engine
    for name, hosts in images(plan).items():
        its = versions.image(name)
        known = {"vllm-ascend": engine.vllm_ascend, "vllm-openai": engine.vllm}.get(its.short)
        if its.version is not None and known and its.version != Version(known):
            key = "vllm_ascend" if its.short == "vllm-ascend" else "vllm"
            yield warning(
                "IMAGE-VERSION",
                _where(plan, hosts),
                f"{name} is {its.version}, the recipe is for {key} {known}",
                f"give both the same: another tag, or engine.{key}: {its.version}",
                "arguments and environment are written for the recipe's version",
            )


def that_move(plan: Plan) -> Iterator[Finding]:
    """A tag that is pushed again gives two hosts two engines, and a rollback the wrong one."""
    for name, hosts in images(plan).items():
        if versions.image(name).rolling:
            yield warning(
                "IMAGE-ROLLING",
                _where(plan, hosts),
                f"{name} is another image from one day to the next",
                "name a release, or a digest: name@sha256:...",
                "hosts that pull on different days run different engines, and one of them may need a newer driver",
                "vllm-ascend issues 5468 and 13393",
            )


def known_bad(plan: Plan) -> Iterator[Finding]:
    """Images that cannot start, whatever runs them."""
    for name, hosts in images(plan).items():
        if bad := versions.image(name).bad:
            yield error(
                "IMAGE-BAD", _where(plan, hosts), f"{name}: {bad.says}", f"use the tag {bad.mend}", source=bad.source
            )


def that_differ(plan: Plan) -> Iterator[Finding]:
    """Hosts of one instance, and the instances of one set, run the same image; through whichever mirror."""
    together = [(s.name, s.instances) for s in plan.sets] or [(i.name, (i,)) for i in plan.instances]
    units = look.engines(plan)
    for name, instances in together:
        found: dict[tuple[str, str], tuple[str, versions.Image]] = {}
        for unit in (u for i in instances for u in units.get(i.name, ())):
            if unit.image:
                its = versions.image(unit.image)
                found.setdefault((its.short, its.digest or its.tag or ""), (unit.host, its))
        if len(found) > 1:
            (first, (one, its)), (second, (two, other)) = list(found.items())[:2]
            known = its.version is not None and other.version is not None  # a digest and a tag may be the same image
            told = error if known and its.version != other.version else warning
            yield told(
                "IMAGE-DIFFERS",
                f"{plan.fleet.source} {name}",
                f"{one} runs {first[0]} {first[1]}, {two} runs {second[0]} {second[1]}",
                "give the hosts that work together one image",
                "collectives and transfers hang, or fail with a version mismatch (EI0008, Ray)",
                "HCCL guide, EI0008; gpustack issue 2691",
            )


CHECKS = (needs_new_driver, of_another_family, of_another_version, that_move, known_bad, that_differ)

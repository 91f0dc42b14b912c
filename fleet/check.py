"""Checks that need no machine: each looks at the plan and yields findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from packaging.version import Version

from fleet import engine
from fleet.findings import Finding, error, warning
from fleet.topology import Plan, platform_of

Check = Callable[[Plan], Iterator[Finding]]


def check_plan(plan: Plan) -> tuple[Finding, ...]:
    """All findings of all checks, in the order of the checks."""
    return tuple(finding for check in CHECKS for finding in check(plan))


def kv_port_in_direct_range(plan: Plan) -> Iterator[Finding]:
    """AscendDirect takes random ports in [20000, 20000 + 1000 x devices) up to Mooncake 0.3.7.post2."""
    transfer = plan.recipe.kv_transfer
    if transfer is None or transfer.connector != "MooncakeConnectorV1":
        return
    stride = 1000 if plan.recipe.engine.version < Version("0.18.0") else 100
    for instance in plan.instances:
        devices = instance.head.settings.device_indices(platform_of(plan.recipe).devices_per_host)
        end = 20000 + stride * (max(devices) + 1)
        if instance.kv_port is not None and 20000 <= instance.kv_port < end:
            yield warning(
                "PORT-KV-DIRECT",
                f"{plan.fleet.recipe} {instance.name}",
                f"kv port {instance.kv_port} lies in 20000-{end - 1}, from which AscendDirect takes ports at random",
                f"set kv_transfer.port to {max(end, 36000)} or above",
                "a start then fails now and then with Address already in use",
                "vllm-ascend PD guide; vllm-ascend issue 8938",
            )


def fused_mc2_on_prefill(plan: Plan) -> Iterator[Finding]:
    """VLLM_ASCEND_ENABLE_FUSED_MC2=2 is meant for decode."""
    for instance in plan.of_role("prefill"):
        if str(instance.spec.env.get("VLLM_ASCEND_ENABLE_FUSED_MC2")) == "2":
            yield warning(
                "ENV-FUSED-MC2",
                f"{plan.fleet.recipe} {instance.name}",
                "VLLM_ASCEND_ENABLE_FUSED_MC2=2 is for decode only",
                "set it to 1 or leave it out on prefill",
                source="vllm-ascend envs.py, 0.13 to 0.22",
            )


def context_beyond_yarn(plan: Plan) -> Iterator[Finding]:
    """The context asked for is longer than yarn's factor times the model's window."""
    for instance in plan.instances:
        wanted = instance.spec.max_model_len
        limit = engine.yarn_context(plan.recipe.model, instance.spec)
        if wanted and limit and wanted > limit:
            yield warning(
                "CONTEXT-YARN",
                f"{plan.fleet.recipe} {instance.name}",
                f"max-model-len {wanted} is more than yarn's {limit}",
                f"set max-model-len to {limit} or a larger factor",
                "the engine refuses it at start, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set",
                "vLLM config/model.py, read at 0.13.0 and 0.30.0",
            )


def context_beyond_model(plan: Plan) -> Iterator[Finding]:
    """The context asked for is longer than the model's own, and nothing extends it."""
    own = plan.recipe.model.max_position_embeddings
    for instance in plan.instances:
        wanted = instance.spec.max_model_len
        if wanted and wanted > own and instance.spec.yarn is None:
            yield error(
                "CONTEXT-MODEL",
                f"{plan.fleet.recipe} {instance.name}",
                f"max-model-len {wanted} is more than the model's {own}",
                f"set max-model-len to {own}, or add yarn: {{factor: {-(-wanted // own)}}}",
                "the engine refuses it at start",
            )


def weights_fill_memory(plan: Plan) -> Iterator[Finding]:
    """BF16 weights on eight 64 GB devices leave next to nothing for the cache."""
    weights = plan.recipe.model.weights_gb
    if plan.recipe.platform != "ascend-a2" or plan.recipe.model.quantization or weights is None:
        return
    for instance in plan.instances:
        memory = 64 * sum(len(m.devices) for m in instance.members)
        if weights > 0.85 * memory:
            yield warning(
                "MEMORY-WEIGHTS",
                f"{plan.fleet.recipe} {instance.name}",
                f"{weights:g} GB of weights on {memory} GB of device memory leave little for the cache",
                "use two hosts, or the w8a8 weights",
                "each NPU uses about 3.4 GB idle; vllm-ascend's own BF16 test on A2 takes two hosts",
                "vllm-ascend nightly test Qwen3-235B-A22B-A2",
            )


def shm_small(plan: Plan) -> Iterator[Finding]:
    """1 GB of shared memory is little for several workers."""
    if plan.recipe.shm_size == "1g" and any(u.runtime == "docker" and u.kind != "proxy" for u in plan.units):
        yield warning(
            "SHM-SMALL",
            plan.fleet.recipe,
            "shm_size 1g is what the vendor's page shows, its own tests use 15 GB",
            "set shm_size: 16g",
            "collectives fail with Error while creating shared memory segment",
            "vllm-ascend CI template; gpustack issue 5014",
        )


def workload_and_reference_differ(plan: Plan) -> Iterator[Finding]:
    """The published table reports another load than the published script asks for."""
    workload, reference = plan.recipe.workload, plan.recipe.reference
    if workload is None or reference is None:
        return
    for argument, figure in (("num-prompts", "requests"), ("max-concurrency", "concurrency")):
        asked, reported = workload.args.get(argument), reference.results.get(figure)
        if isinstance(asked, int) and reported is not None and asked != reported:
            yield warning(
                "REFERENCE-LOAD",
                plan.fleet.recipe,
                f"workload has {argument} {asked}, the reference was reported for {reported:g}",
                "compare figures with care",
                "the source disagrees with itself",
            )


def accuracy_of_another_version(plan: Plan) -> Iterator[Finding]:
    """An accuracy figure measured with another version is no target for this one."""
    reference = plan.recipe.reference
    measured = str(reference.accuracy.get("measured_with", "")) if reference else ""
    version = plan.recipe.engine.vllm_ascend or plan.recipe.engine.vllm
    if measured and version not in measured:
        yield warning(
            "REFERENCE-VERSION",
            plan.fleet.recipe,
            f"the accuracy figure was measured with {measured}, this recipe runs {version}",
            "measure once with this version before using it as a limit",
        )


def image_needs_new_driver(plan: Plan) -> Iterator[Finding]:
    """vllm/vllm-openai without suffix is built on CUDA 13 from 0.20.0 on."""
    images = {u.image for u in plan.units if u.image}
    if plan.recipe.platform != "nvidia" or plan.recipe.engine.version < Version("0.20.0"):
        return
    for image in sorted(i for i in images if "-cu" not in i and "vllm-openai" in i):
        yield warning(
            "IMAGE-CUDA",
            plan.fleet.recipe,
            f"{image} is built on CUDA 13.0, which needs a driver of the R580 class",
            f"set engine.image: {image}-cu129 for older drivers",
            "from 0.20.0 on the tag without a suffix is CUDA 13",
            "vLLM release notes 0.20.0",
        )


def argument_left_out(plan: Plan) -> Iterator[Finding]:
    """An argument that this version does not have is not passed on."""
    version = plan.recipe.engine.version
    for name in plan.recipe.roles:
        for argument in plan.recipe.role(name).args:
            if not engine.exists(argument, version):
                yield warning(
                    "VERSION-ARGUMENT",
                    f"{plan.fleet.recipe} {name}",
                    f"vLLM {version} has no --{argument}; it is left out",
                    "remove it from the recipe, or choose a version that has it",
                )


def unchecked_code(plan: Plan) -> Iterator[Finding]:
    """Code that comes with the weights is run."""
    if any(i.spec.args.get("trust-remote-code") for i in plan.instances):
        yield warning(
            "SECURITY-REMOTE-CODE",
            plan.fleet.recipe,
            "trust-remote-code runs code that comes with the weights",
            "remove it where the engine knows the model, as it does Qwen3",
        )


def dies_apart(plan: Plan) -> Iterator[Finding]:
    """An A3's device has two dies; two services on one device disturb each other."""
    if plan.recipe.platform != "ascend-a3":
        return
    for node in plan.fleet.nodes:
        given = node.settings.device_indices(platform_of(plan.recipe).devices_per_host)
        alone = [i for i in given if i ^ 1 not in given]
        if node.settings.shares_host and alone:
            yield warning(
                "DEVICES-PAIRS",
                f"{plan.fleet.source} {node.name}",
                f"device {alone[0]} is given without {alone[0] ^ 1}, the other die of the same NPU",
                "give dies in pairs: devices = '0-7'",
                "the two dies of an NPU share its memory bandwidth and its network",
                "vllm-ascend installation guide, Atlas A3",
            )


def devices_beyond_family(plan: Plan) -> Iterator[Finding]:
    """Device indices that the family's usual host does not have."""
    usual = platform_of(plan.recipe).devices_per_host
    if plan.recipe.platform == "cpu":
        return
    for node in plan.fleet.nodes:
        highest = max(node.settings.device_indices(usual))
        if node.settings.shares_host and highest >= usual:
            yield warning(
                "DEVICES-COUNT",
                f"{plan.fleet.source} {node.name}",
                f"device {highest} is given, the usual {plan.recipe.platform} host has 0 to {usual - 1}",
                "mend devices, unless this host has more",
                "a unit waits for a device that is not there, and gives up after ten minutes",
            )


CHECKS: tuple[Check, ...] = (
    kv_port_in_direct_range,
    fused_mc2_on_prefill,
    context_beyond_yarn,
    context_beyond_model,
    weights_fill_memory,
    shm_small,
    workload_and_reference_differ,
    accuracy_of_another_version,
    image_needs_new_driver,
    argument_left_out,
    unchecked_code,
    dies_apart,
    devices_beyond_family,
)

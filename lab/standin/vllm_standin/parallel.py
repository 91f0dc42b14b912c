"""Sizes and ranks: what this process is within its instance."""

from __future__ import annotations

from dataclasses import dataclass

from .arguments import Args
from .settings import Version, log, refuse, version

# From here on a start rank of 0 counts as given, and giving one without --headless is another balancing mode.
START_RANK_ZERO_GIVEN: Version = (0, 28, 0)


@dataclass(frozen=True)
class Parallel:
    """Sizes, and which of the data-parallel ranks run here."""

    tensor: int
    pipeline: int
    size: int
    local: int
    start: int
    headless: bool
    # Every node serves its own API: the others must then not be headless.
    external: bool
    address: str | None
    rpc_port: int
    ray: bool

    @property
    def world(self) -> int:
        """Workers of one data-parallel rank."""
        return self.tensor * self.pipeline

    @property
    def ranks(self) -> range:
        """The global ranks that run here."""
        return range(self.start, self.start + self.local)

    @property
    def is_head(self) -> bool:
        """Whether the others report here."""
        return not self.headless and self.start == 0

    @property
    def spans_hosts(self) -> bool:
        """Whether ranks run elsewhere too."""
        return self.local < self.size


def parallel(args: Args) -> Parallel:
    """What the arguments say, or the refusal of the real engine's configuration."""
    size = args.integer("data_parallel_size", 1)
    headless = bool(args.get("headless", False))
    ray = args.get("distributed_executor_backend") == "ray"
    rank = args.get("data_parallel_rank")
    given = args.get("data_parallel_start_rank")
    external = bool(args.get("data_parallel_external_lb", False)) or rank is not None
    hybrid = bool(args.get("data_parallel_hybrid_lb", False))
    local = 1 if external else args.integer("data_parallel_size_local", size)
    if headless and hybrid:
        refuse("ValueError", "data_parallel_hybrid_lb is not applicable in headless mode")
    if headless and args.integer("api_server_count", 0) > 0:
        refuse("ValueError", "api_server_count can't be set in headless mode")
    if headless and local <= 0:
        refuse("ValueError", "data_parallel_size_local must be > 0 in headless mode")
    if local > size:
        refuse("ValueError", f"data_parallel_size_local ({local}) must be <= data_parallel_size ({size})")
    start = int(rank if rank is not None else given or 0)
    counts = given is not None if version() >= START_RANK_ZERO_GIVEN else bool(given)
    if args.has("data_parallel_size_local") and not headless and counts and local < size:
        hybrid = True
        log(f"stand-in: --data-parallel-start-rank {given} without --headless: hybrid or external load balancing")
    if start + local > size or start < 0:
        refuse("ValueError", f"data_parallel_rank ({start + local - 1}) must be in the range [0, {size})")
    if size <= 1 and external and rank is None:
        refuse("ValueError", "data_parallel_external_lb can only be set when data_parallel_size > 1")
    return Parallel(
        tensor=args.integer("tensor_parallel_size", 1),
        pipeline=args.integer("pipeline_parallel_size", 1),
        size=size,
        local=local,
        start=start,
        headless=headless,
        external=hybrid or external,
        address=args.get("data_parallel_address"),
        rpc_port=args.integer("data_parallel_rpc_port", 29550),
        ray=ray,
    )

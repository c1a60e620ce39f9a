"""What is kept of a sandbox and of a container, and how an update of resources changes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from koordpb import cri_v1_pb2 as pb

_OVERLAID = (
    "cpu_period",
    "cpu_quota",
    "cpu_shares",
    "memory_limit_in_bytes",
    "memory_swap_limit_in_bytes",
    "oom_score_adj",
    "cpuset_cpus",
    "cpuset_mems",
)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod sandbox. ``config``: metadata, labels, annotations, linux; never changed in place."""

    id: str
    config: pb.PodSandboxConfig
    runtime_handler: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container. ``config``: metadata, envs, labels, annotations, resources; never changed."""

    id: str
    sandbox_id: str
    config: pb.ContainerConfig


def kept_of_pod(config: pb.PodSandboxConfig) -> pb.PodSandboxConfig:
    """A copy without what no hook server is told."""
    kept = pb.PodSandboxConfig(
        metadata=config.metadata, labels=config.labels, annotations=config.annotations
    )
    kept.linux.cgroup_parent = config.linux.cgroup_parent
    if config.linux.HasField("overhead"):
        kept.linux.overhead.CopyFrom(config.linux.overhead)
    if config.linux.HasField("resources"):
        kept.linux.resources.CopyFrom(config.linux.resources)
    return kept


def kept_of_container(config: pb.ContainerConfig) -> pb.ContainerConfig:
    """A copy without what no hook server is told."""
    kept = pb.ContainerConfig(
        metadata=config.metadata,
        envs=config.envs,
        labels=config.labels,
        annotations=config.annotations,
    )
    kept.linux.resources.CopyFrom(config.linux.resources)
    return kept


def overlaid(
    stored: pb.LinuxContainerResources, update: pb.LinuxContainerResources
) -> pb.LinuxContainerResources:
    """The stored resources with an update laid over them, as runtimes do: a default is "as is"."""
    result = pb.LinuxContainerResources()
    result.CopyFrom(stored)
    for name in _OVERLAID:
        value = getattr(update, name)
        if value:
            setattr(result, name, value)
    result.unified.update(update.unified)
    if update.hugepage_limits:
        del result.hugepage_limits[:]
        result.hugepage_limits.extend(update.hugepage_limits)
    return result


def with_resources(container: Container, update: pb.LinuxContainerResources) -> Container:
    config = pb.ContainerConfig()
    config.CopyFrom(container.config)
    config.linux.resources.CopyFrom(overlaid(container.config.linux.resources, update))
    return Container(container.id, container.sandbox_id, config)


def with_pod_resources(
    sandbox: Sandbox, overhead: pb.LinuxContainerResources, resources: pb.LinuxContainerResources
) -> Sandbox:
    config = pb.PodSandboxConfig()
    config.CopyFrom(sandbox.config)
    linux = config.linux
    linux.overhead.CopyFrom(overlaid(linux.overhead, overhead))
    linux.resources.CopyFrom(overlaid(linux.resources, resources))
    return Sandbox(sandbox.id, config, sandbox.runtime_handler)

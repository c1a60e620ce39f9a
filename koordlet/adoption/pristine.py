"""What a kernel file of a managed node would hold if no agent had ever written to it. Pure.

The kubelet's own formula for tiers and pods, the runtime's spec (checked against the kubelet's
formula) for containers, the CPU manager's state for their CPUs, the kernel's default elsewhere.
What cannot be known is Missing with what is lacking; it is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from koordlet.adoption import cpu_rules, memory_rules
from koordlet.adoption.asking import Asking, Pristine, unless_default
from koordlet.adoption.places import Level
from koordlet.model.knobs import Knob
from koordlet.model.readings import Missing

Rule = Callable[[Asking], Pristine | None]

RULES: Mapping[Knob, Rule] = {
    Knob.CPU_SHARES: cpu_rules.shares,
    Knob.CPU_QUOTA: cpu_rules.quota,
    Knob.CPU_BURST: cpu_rules.burst,
    Knob.CPU_IDLE: cpu_rules.idle,
    Knob.CPUSET_CPUS: cpu_rules.cpus,
    Knob.CPUSET_MEMS: cpu_rules.mems,
    Knob.MEMORY_LIMIT: memory_rules.memory_limit,
    Knob.MEMORY_SWAP_LIMIT: memory_rules.swap_limit,
    Knob.MEMORY_MIN: memory_rules.memory_protection,
    Knob.MEMORY_LOW: memory_rules.memory_protection,
    Knob.MEMORY_HIGH: memory_rules.memory_protection,
    Knob.MEMORY_OOM_GROUP: memory_rules.oom_group,
    Knob.IO_WEIGHT: memory_rules.io,
    Knob.IO_MAX: memory_rules.io,
    Knob.PIDS_MAX: memory_rules.pids,
}
"""Every knob that can be written."""


def pristine(asking: Asking) -> Pristine | None:
    """The answer; None where no agent that we know writes the file, and so nobody asks."""
    rule = RULES.get(asking.knob)
    if rule is None or asking.place.level is Level.NESTED:
        return None
    if asking.place.level is Level.STRANGER:
        return unless_default(asking, Missing("no source tells of a pod here"))
    return rule(asking)

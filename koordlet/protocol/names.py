"""Labels, annotations and resource names, spelled as Koordinator and Kubernetes spell them."""

from __future__ import annotations

LABEL_QOS = "koordinator.sh/qosClass"
LABEL_PRIORITY_CLASS = "koordinator.sh/priority-class"

ANNOTATION_RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
"""JSON; ``cpuset`` is what the scheduler allocated."""

ANNOTATION_EXTENDED_RESOURCE_SPEC = "node.koordinator.sh/extended-resource-spec"
"""JSON: requests and limits by container, in the extended resources below."""

ANNOTATION_STATIC_POD_HASH = "kubernetes.io/config.hash"
"""On a static pod: the UID that its cgroup paths use."""

ANNOTATION_CONFIG_SOURCE = "kubernetes.io/config.source"
"""Set by the kubelet on every pod: ``api``, or ``file`` or ``http`` for a static pod."""

RESOURCE_BATCH_CPU = "kubernetes.io/batch-cpu"  # whole milli-cores
RESOURCE_BATCH_MEMORY = "kubernetes.io/batch-memory"  # bytes
RESOURCE_MID_CPU = "kubernetes.io/mid-cpu"  # whole milli-cores
RESOURCE_MID_MEMORY = "kubernetes.io/mid-memory"  # bytes

NODESLO_KIND = "NodeSLO"
NODESLO_API_VERSION = "slo.koordinator.sh/v1alpha1"

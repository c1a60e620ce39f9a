"""What this machine allows tests to do; each answer is why not, or ``""``."""

from __future__ import annotations

import os
import shutil

from tests.support import cgroot


def why_no_kernel_tests() -> str:
    """Kernel tests need root and cgroups of their own."""
    return cgroot.why_not()


def why_no_runtime_tests() -> str:
    """End-to-end tests need a private containerd with runc besides."""
    missing = [tool for tool in ("containerd", "runc", "busybox") if shutil.which(tool) is None]
    if missing and os.geteuid() == 0:
        return f"needs {', '.join(missing)}; remedy: make test installs them"
    return why_no_kernel_tests()


def why_no_kubelet_tests() -> str:
    """Tests against a real kubelet take its path from KUBELET; no package installs one."""
    path = os.environ.get("KUBELET", "")
    if not path:
        return "needs KUBELET=<path of a kubelet binary>"
    if not os.access(path, os.X_OK):
        return f"KUBELET={path} is no executable file"
    return why_no_runtime_tests()

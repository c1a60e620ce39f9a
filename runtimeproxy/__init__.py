"""A CRI proxy between kubelet and runtime that kubelet cannot tell from the runtime."""

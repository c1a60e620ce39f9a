"""Docker's API through the proxy, for kubelets that speak to dockerd or by cri-dockerd."""

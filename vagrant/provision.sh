#!/bin/sh
# Makes this machine a node: containerd with runc, and koordlet from the working tree in /project.
# Fit for any Debian 12 or newer; on the project's own box nothing needs downloading.
set -eu
export DEBIAN_FRONTEND=noninteractive

packages="containerd make python3-venv runc"
for package in $packages; do
  if ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
    apt-get update
    # shellcheck disable=SC2086
    apt-get install --yes --no-install-recommends $packages
    break
  fi
done

# The kubelet's own choice: systemd owns the pods' cgroups on v2, the runtime does on v1.
systemd_cgroup=true
test -e /sys/fs/cgroup/cgroup.controllers || systemd_cgroup=false
mkdir -p /etc/containerd
cat > /etc/containerd/config.toml <<CONFIG
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = $systemd_cgroup
CONFIG
systemctl enable containerd
systemctl restart containerd

wheels=
test ! -d /opt/wheels || wheels=/opt/wheels
make -C /project install WHEELS="$wheels"
systemctl enable --now koordlet
systemctl --no-pager --lines=0 status koordlet

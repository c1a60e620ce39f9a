#!/bin/sh
# cgroup.sh v1|v2: which cgroups the box boots with from now on.
set -eu
mount /dev/vda1 /mnt
sed -i "s/^DEFAULT .*/DEFAULT $1/" /mnt/syslinux.cfg
umount /mnt

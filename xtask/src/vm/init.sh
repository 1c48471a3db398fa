#!/bin/busybox sh
# The guest's first process: mounts what a machine has, runs /command as root, reports its status
# on the second serial port, ends the guest.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux LANG=C.UTF-8

if [ -z "$MUSTER_GUEST" ]; then
    /bin/busybox --install -s /bin
    # A kernel refuses pivot_root, which isolation needs, as long as the root is the file system it
    # unpacked itself. Seen through a bind mount the same files are a root like any other.
    mount -o bind / /mnt
    cd /mnt || exit 1
    mount -o move . /
    export MUSTER_GUEST=1 MUSTER_BIN=/usr/bin/muster MUSTER_JUDGES=/judges RUST_BACKTRACE=1
    [ -e usr/lib/muster/muster-ebpf.o ] && export MUSTER_EBPF_OBJECT=/usr/lib/muster/muster-ebpf.o
    exec chroot . /init
fi

mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t devtmpfs -o nosuid devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o nosuid,noexec devpts /dev/pts
mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount -t bpf -o mode=700 bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
# One request at a time, each done after 5 ms: a disk that is busy although the processor is not.
slow_disk="gb=1 queue_mode=2 hw_queue_depth=1 irqmode=2 completion_nsec=5000000"
for module in /modules/*.ko; do
    case "$module" in
    *null_blk.ko) insmod "$module" $slow_disk ;;
    *.ko) [ -e "$module" ] && insmod "$module" ;;
    esac
done
ip link set lo up
hostname guest
ulimit -l unlimited
ulimit -n 65536
stty -F /dev/ttyS0 -opost
stty -F /dev/ttyS1 -opost

cd /root || exit 1
if [ -e /interactive ]; then
    setsid cttyhack sh /command
else
    sh /command </dev/null
fi
status=$?

# Setting a terminal's mode waits until what was written to it is out.
stty -F /dev/ttyS0 -opost
echo "$status" >/dev/ttyS1
# The host ends the guest when it has read the status. Power-off is for a host that does not.
sleep 10
poweroff -f

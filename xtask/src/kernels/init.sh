#!/busybox sh
# The first process of the machine inside: mounts what tests need, runs them, and turns the machine off.
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sysfs /sys
/busybox mount -t devtmpfs devtmpfs /dev
/busybox mkdir -p /dev/pts /dev/shm
/busybox mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
/busybox mount -t tmpfs tmpfs /dev/shm
/busybox mount -t tmpfs tmpfs /tmp
/busybox mount -t tmpfs tmpfs /run
/busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
/busybox mount -t bpf bpf /sys/fs/bpf
/busybox mount -t securityfs securityfs /sys/kernel/security
/busybox ip link set lo up
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8
for word in $(/busybox cat /proc/cmdline); do
    case $word in ACRFENCE_*) export "$word" ;; esac
done
cd /root
echo "Linux $(/busybox uname -r), LSMs $(/busybox cat /sys/kernel/security/lsm)"
@BINARY@ doctor
@TESTS@
/busybox poweroff -f

# Makes a host of a new set of namespaces: its own directories, name and address.
# Variables: NAME, ADDRESSES (with prefix lengths), OWN_HOME (or empty), KEPT (paths).
echo "$NAME" >/proc/sys/kernel/hostname

for place in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $place; done
for place in /run /var/log; do mount -t tmpfs -o mode=755 tmpfs $place; done
mkdir /run/sshd /run/lock /run/etc /run/etc/work

cp -a /mnt/etc /run/etc/upper
echo "$NAME" >/run/etc/upper/hostname
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work etc /etc

home=/mnt/home
if [ -n "$OWN_HOME" ]; then
    home=/run/home
    cp -a /mnt/home $home
fi
mount --bind $home/root /root
mount --bind $home /home

# What tests write on the machine's own disk would be common to all hosts.
number=0
for path in $KEPT; do
    mkdir -p "$path"
    mount --rbind /mnt/kept/$number "$path"
    number=$((number + 1))
done
mount -o remount,bind,ro /
umount -l /mnt

ip link set lo up
ip link set eth0 up
for address in $ADDRESSES; do ip address add "$address" dev eth0 nodad; done

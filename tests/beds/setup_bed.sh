# Makes the switch and the files that all hosts of a bed start with, below /mnt, in the bed's mount
# namespace: /mnt/etc (on top of the machine's /etc), /mnt/home and /mnt/kept.
# Variables: HOSTS (lines of /etc/hosts), KNOWN (names and addresses), KEPT (paths),
# SSHD (lines of sshd_config).
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir -p /mnt/etc/ssh /mnt/home /mnt/kept
mkdir -m 711 /mnt/home/root /mnt/home/ipuser

number=0
for path in $KEPT; do
    mkdir /mnt/kept/$number
    mount --rbind "$path" /mnt/kept/$number
    number=$((number + 1))
done

cat >/mnt/etc/hosts <<END
127.0.0.1 localhost
::1 localhost ip6-localhost
$HOSTS
END
sed 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf >/mnt/etc/nsswitch.conf

# Both users have the password "poprun".
hash='$6$bed$Es3to8v13VIpLcV437u7SlGWc6ZwAqiOSVH7jCn9SzH92GkcwYlc.QNt8tI0NYxZmRlUPyf7wZea5O.zadd4q0'
{ cat /etc/passwd; echo "ipuser:x:4242:4242::/home/ipuser:/bin/bash"; } >/mnt/etc/passwd
{ cat /etc/group; echo "ipuser:x:4242:"; } >/mnt/etc/group
sed "s|^root:[^:]*:|root:$hash:|" /etc/shadow >/mnt/etc/shadow
echo "ipuser:$hash:19000::::::" >>/mnt/etc/shadow
chmod 600 /mnt/etc/shadow

cd /mnt/etc/ssh
ssh-keygen -q -t ed25519 -N '' -C bed -f ssh_host_ed25519_key
cat >sshd_config <<END
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin yes
UsePAM no
PrintMotd no
PidFile /run/sshd.pid
MaxStartups 100
$SSHD
END
if [ -n "$KNOWN" ]; then
    echo "$KNOWN $(cut -d' ' -f1,2 ssh_host_ed25519_key.pub)" >ssh_known_hosts
fi

cd /mnt/home
mkdir -m 700 root/.ssh
ssh-keygen -q -t ed25519 -N '' -C bed -f root/.ssh/id_ed25519
cp root/.ssh/id_ed25519.pub root/.ssh/authorized_keys
cp -a root/.ssh ipuser
chown -R 4242:4242 ipuser

# Its ports have no addresses.
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
ip link add name switch type bridge mcast_snooping 0
ip link set dev switch up

# Starts Slurm's daemons on a host; it gets slurm.conf on stdin.
# Variables: NAME (of the host), KEY (munge's, of at least 32 characters),
# CONTROLLER (yes where slurmctld runs).
mkdir -p /etc/slurm /run/munge /run/slurm/cgroup /run/slurm/controller /run/slurm/daemon
cat >/etc/slurm/slurm.conf
cat >/etc/slurm/cgroup.conf <<END
CgroupPlugin=cgroup/v1
CgroupMountpoint=/run/slurm/cgroup
END

(umask 077 && printf %s "$KEY" >/run/munge/key)
munged --key-file=/run/munge/key --seed-file=/run/munge/seed \
    --pid-file=/run/munge/pid --log-file=/var/log/munged.log --force

if [ -n "$CONTROLLER" ]; then slurmctld -i; fi
slurmd -N "$NAME"

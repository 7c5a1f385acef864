#!/usr/bin/env bash
# A real Slurm of one node on this machine, for trying scheduler.type=slurm and for its tests: its own munge key, munged,
# slurmctld and slurmd, all on the loopback interface, with every file in one folder.
#
# usage: scripts/slurm_node.sh start FOLDER      install what is missing (Debian packages), configure, start; as root
#        scripts/slurm_node.sh stop FOLDER       cancel its jobs and end its daemons
# Then: export SLURM_CONF=FOLDER/slurm.conf
#
# A start where it runs already is fine. Its ports are Slurm's own, or others where another Slurm has those.
# Left out: accounting (sacct), which needs a database; more than one node; a machine where root must not run jobs.
set -euo pipefail

fail() { echo "slurm_node.sh: $*" >&2; exit 1; }
[ $# -eq 2 ] || fail "usage: slurm_node.sh start|stop FOLDER"
action=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export SLURM_CONF="$folder/slurm.conf"

alive() { [ -s "$folder/$1.pid" ] && kill -0 "$(cat "$folder/$1.pid")" 2>/dev/null; }

taken() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

install() {
    for program in munged slurmctld slurmd sbatch; do
        command -v "$program" >/dev/null && continue
        command -v apt-get >/dev/null || fail "no $program, and no apt-get to install it with: install Slurm and munge"
        echo "installing slurm-wlm and munge"
        export DEBIAN_FRONTEND=noninteractive
        # the packages' own services must not start: ours have their own configuration
        printf '#!/bin/sh\nexit 101\n' > "$folder/no-services" && chmod +x "$folder/no-services"
        local made='' failed=''
        [ -e /usr/sbin/policy-rc.d ] || { cp "$folder/no-services" /usr/sbin/policy-rc.d; made=1; }
        { apt-get -qq update && apt-get -qq install -y --no-install-recommends slurm-wlm munge; } > "$folder/apt.log" 2>&1 \
            || failed=1
        [ -z "$made" ] || rm /usr/sbin/policy-rc.d
        [ -z "$failed" ] \
            || { tail -n 20 "$folder/apt.log" >&2; fail "apt-get could not install slurm-wlm and munge: $folder/apt.log"; }
        return
    done
}

configure() {
    mkdir -p "$folder/state" "$folder/spool"
    chmod 700 "$folder"
    [ -s "$folder/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom > "$folder/munge.key")
    local name memory port=6817
    while taken "$port" || taken "$((port + 1))"; do port=$((port + 10)); done
    name=$(uname -n | cut -d. -f1)
    memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.95)}' /proc/meminfo)
    cat > "$SLURM_CONF" <<CONF
ClusterName=onenode
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=10
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,sched_interval=5,bf_interval=5,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
JobRequeue=1
MinJobAge=3600
KillWait=30
SlurmctldTimeout=300
SlurmdTimeout=300
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$name NodeAddr=127.0.0.1 CPUs=$(nproc --all) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$name Default=YES MaxTime=INFINITE State=UP
CONF
    # from 23 on slurmd asks a container's cgroups for more than they give, and can do without them
    if [ "$(slurmd -V | grep -oE '[0-9]+' | head -n 1)" -ge 23 ]; then
        echo "CgroupPlugin=disabled" > "$folder/cgroup.conf"
    fi
}

start() {
    [ "$(id -u)" = 0 ] || fail "starting a Slurm node needs root"
    install
    alive slurmctld || configure
    alive munged || munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
        --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
    alive slurmctld || slurmctld || fail "slurmctld does not start: $(tail -n 3 "$folder/slurmctld.log")"
    alive slurmd || slurmd || fail "slurmd does not start: $(tail -n 3 "$folder/slurmd.log")"
    for _ in $(seq 100); do
        sinfo --noheader --format=%T 2>/dev/null | grep -qE 'idle|mixed|allocated' && { echo "SLURM_CONF=$SLURM_CONF"; return; }
        sleep 0.2
    done
    tail -n 5 "$folder"/slurmctld.log "$folder"/slurmd.log >&2 || true
    fail "the node did not become idle in 20 s; logs: $folder"
}

stop() {
    if alive slurmctld; then
        scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
        scancel --user="$(id -un)" 2>/dev/null || true
        for _ in $(seq 50); do [ -z "$(squeue --noheader 2>/dev/null)" ] && break; sleep 0.2; done
    fi
    for daemon in slurmd slurmctld munged; do
        alive "$daemon" || continue
        kill "$(cat "$folder/$daemon.pid")"
        for _ in $(seq 50); do alive "$daemon" || break; sleep 0.1; done
        ! alive "$daemon" || kill -KILL "$(cat "$folder/$daemon.pid")"
    done
}

case $action in
    start) start ;;
    stop) stop ;;
    *) fail "usage: slurm_node.sh start|stop FOLDER" ;;
esac

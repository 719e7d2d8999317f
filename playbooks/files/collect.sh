# Prints a compressed archive of logs and state, in base64, for collect.yml. Runs as root, by bash, with C4_NAME, C4_STATE
# and C4_SECONDS set, in a folder that only root can enter: root writes all files there, and opens and unpacks nothing that
# another user can make.
set -u
umask 077
place=$(mktemp -d /tmp/c4bench-collected.XXXXXX) && cd "$place" || exit 1
trap 'rm -rf "$place"' EXIT

# What a command prints, for up to $C4_SECONDS and $1 megabytes. What stays behind and holds the pipe holds up nobody.
within() {
  megabytes=$1
  shift
  timeout -k 1 "$C4_SECONDS" "$@" 2>&1 </dev/null | timeout -k 1 "$((C4_SECONDS + 2))" head -c "${megabytes}M"
}

# Read with the agent's rights, so that a link among the logs opens nothing that it cannot read.
as_agent="setpriv --reuid $C4_NAME --regid $C4_NAME --init-groups --no-new-privs --reset-env"
logs='exec 2>/dev/null; cd "$1" && find . -maxdepth 1 -type f -links 1 -name "*.log" -size -64M -printf "%f\0" |
  tar --null --no-recursion -T - -cf -'
within 64 $as_agent /bin/sh -c "$logs" sh "$C4_STATE" > agent-logs.tar
for file in audit.jsonl quarantine.json; do
  if [ -f /var/lib/c4bench/$file ]; then within 16 tail -c 16M /var/lib/c4bench/$file > $file; fi
done
within 16 journalctl -u "$C4_NAME" -n 2000 --no-pager > unit.log
within 16 dmesg -T > kernel.log
within 16 ip -details -statistics link > links.txt
within 16 tc -s qdisc > queues.txt
within 16 rdma -d link > rdma.txt
find . -type f -size 0 -delete
tar -czf - -- * | base64 -w 0

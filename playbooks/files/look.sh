#!/bin/sh
# look.sh PREFIX [OPERATOR...]: a line for everything that is wrong with the agent's installation in PREFIX. Each begins
# with "wrong: ", since what a login itself says comes by the same way.
prefix=$1
name=${prefix##*/}
shift

say() { echo "wrong: $*"; }

[ -x "$prefix/bin/python" ] || { say "nothing is in $prefix: run deploy.yml"; exit 0; }
said=$("$prefix/bin/python" -I -c 'import c4bench.agent.main' 2>&1) || say "the agent's Python does not work: $said"

loose=$(find "$prefix" "/etc/$name" "/etc/sudoers.d/$name" '(' ! -user root -o -perm /022 ')' ! -type l 2>/dev/null | head -3)
[ -z "$loose" ] || say "not root's alone to write:" $loose "(run deploy.yml again after removing $prefix)"

pid=$(pgrep -o -u "$name" -f "c4bench.agent.main --config /etc/$name/agent.yml")
if [ -z "$pid" ]; then
  say "no agent runs as user $name: run start.yml; its log is /run/$name/agent.log, or: journalctl -u $name"
else
  [ -S "/run/$name/agent.sock" ] || say "the agent (process $pid) does not serve: there is no /run/$name/agent.sock"
  locked=$(awk '/^Max locked memory/ {print $4}' "/proc/$pid/limits")
  if [ -d /sys/class/infiniband ] && [ "$locked" != unlimited ]; then
    say "ranks may lock only $locked bytes of memory for their NICs: raise the container's or service manager's limit"
  fi
fi

for operator; do
  sudo -n -l -U "$operator" "$prefix/bin/inject" >/dev/null 2>&1 ||
    say "$operator may not call $prefix/bin/inject by sudo: run deploy.yml with -e c4_operators=$operator"
done
exit 0

#!/bin/sh
# look.sh PREFIX [OPERATOR...]: print a line for each problem of the agent's installation in PREFIX. Each line begins with
# "wrong: ", because the output of the login itself is mixed in.
prefix=$1
name=${prefix##*/}
shift

say() { echo "wrong: $*"; }

[ -x "$prefix/bin/python" ] || { say "$prefix has no agent: run deploy.yml"; exit 0; }
said=$("$prefix/bin/python" -I -c 'import c4bench.agent.main' 2>&1) || say "the agent's Python does not work: $said"

loose=$(find "$prefix" "/etc/$name" "/etc/sudoers.d/$name" '(' ! -user root -o -perm /022 ')' ! -type l 2>/dev/null | head -3)
[ -z "$loose" ] || say "users other than root can write to" $loose "(remove $prefix and run deploy.yml again)"

pid=$(pgrep -o -u "$name" -f "c4bench.agent.main --config /etc/$name/agent.yml")
if [ -z "$pid" ]; then
  say "no agent runs as user $name: run start.yml; its log is /run/$name/agent.log, or: journalctl -u $name"
else
  [ -S "/run/$name/agent.sock" ] || say "the agent (process $pid) does not serve requests: /run/$name/agent.sock is missing"
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

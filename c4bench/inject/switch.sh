# What c4bench runs on a switch, as root: `switch_shell.py` calls these functions. POSIX sh, flock and timeout.
# A change is made and undone under the lock; while its file TOKEN.undo is there, it is in force.
LC_ALL=C.UTF-8
PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME="${HOME:-/root}"
export LC_ALL PATH HOME
unset LANGUAGE
umask 077
# Whoever asked may be gone by the time of an answer; that must not stop a change halfway.
trap '' HUP PIPE
folder=/run/c4bench-switch

say() {
    printf '%s %s\n' "$mark" "$*"
}

refuse() {
    say refused "$*"
    exit 0
}

last_line() {
    printf '%s' "$1" | tail -n 1
}

limited() {
    timeout -k 2 "${limit:-20}" sh -c "$1"
}

uptime_ms() {
    read -r up _ </proc/uptime
    cents=${up#*.}
    echo $((${up%.*} * 1000 + ${cents#0} * 10))
}

pause() {
    sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
}

# section NAME COMMAND: what a command prints, and its exit code.
section() {
    say section "$1"
    error=$(limited "$2" 2>&1 >&3)
    code=$?
    say code $code
    [ $code -eq 0 ] || say "error-$1" "$(last_line "$error")"
}

# Whether there can be a lock, without which nothing is changed.
lockable() {
    command -v flock >/dev/null && mkdir -p "$folder" 2>/dev/null && touch "$folder/lock" 2>/dev/null
}

# Take the lock, within $1 seconds where that is said.
lock() {
    lockable || return
    exec 9>"$folder/lock"
    flock ${1:+-w "$1"} 9
}

# begin TOKEN DEADLINE_MS OWN_MS: all that comes before the first change. $claims, $undo and $flap are set. OWN_MS is the
# switch's own timer, 0 for none.
begin() {
    say begun "$(uptime_ms)"
    token=$1
    deadline=$2
    for tool in flock timeout; do
        command -v $tool >/dev/null || refuse "it has no $tool, without which nothing is changed; install it"
    done
    lock 30 || refuse "$folder cannot be locked: full, not root's, or another change is under way"
    [ ! -e "$folder/$token.over" ] || refuse "the fault has ended before it began"
    find "$folder" -name '*.over' -mmin +1440 -exec rm -f {} + 2>/dev/null
    taken=$(printf '%s\n' "$claims" | while read -r claim; do
        grep -qFx "# claim: $claim" "$folder"/*.undo 2>/dev/null && echo "$claim" && break
    done)
    [ -z "$taken" ] || refuse "the $taken is changed by another fault there; end that first"
    printf '%s\n' "$undo" >"$folder/$token.new"
    [ "$(cat "$folder/$token.new")" = "$undo" ] && mv "$folder/$token.new" "$folder/$token.undo" || {
        rm -f "$folder/$token.new"
        refuse "$folder takes no file: its disk is full; free some space (df /run)"
    }
    [ "$3" -gt 0 ] || arm || {
        rm -f "$folder/$token.undo"
        refuse "no timer could be armed to end the fault: it needs systemd-run, or at with its daemon atd"
    }
    [ $((deadline - $(uptime_ms))) -gt 0 ] || {
        finish
        refuse "the lease was over before the fault began: it answers slowly; ask for a longer one"
    }
    say changing "$(uptime_ms)"
}

# Have the file run at the deadline.
arm() {
    left=$((deadline - $(uptime_ms)))
    [ $left -gt 0 ] || left=1
    if started "c4bench-$token" --on-active="${left}ms" --timer-property=AccuracySec=50ms -- "$folder/$token.undo" timer
    then
        return
    fi
    command -v at >/dev/null || return
    echo "exec sh '$folder/$token.undo' wait $deadline" | at now >/dev/null 2>&1 9>&- || return
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        [ -e "$folder/$token.waiting" ] && return
        sleep 0.1
    done
    return 1
}

# started UNIT OPTION... -- FILE WORD...: whether systemd runs the file; versions before 236 know no --collect.
started() {
    [ -d /run/systemd/system ] && command -v systemd-run >/dev/null || return
    unit=$1
    shift
    options=
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    # shellcheck disable=SC2086  (options have no spaces)
    systemd-run --quiet --collect --unit="$unit" $options sh "$@" >/dev/null 2>&1 9>&- ||
        systemd-run --quiet --unit="$unit" $options sh "$@" >/dev/null 2>&1 9>&-
}

disarm() {
    [ -d /run/systemd/system ] || return
    systemctl --quiet stop "c4bench-$token.timer" "c4bench-$token-flap.service" >/dev/null 2>&1
}

# Undo what was done so far, under the lock that we have, and leave nothing.
finish() {
    problems=$(sh "$folder/$token.undo" held)
    disarm
}

# change LINE: one line of the change; where it is refused, all is undone.
change() {
    error=$(limited "$1" 2>&1) || {
        finish
        refuse "\`$1\` was refused, and all is as before: $(last_line "$error")"
    }
}

# commit OWN_MS: the change is made.
commit() {
    [ "$1" -eq 0 ] ||
        sh "$folder/$token.undo" forget $(($(uptime_ms) + $1)) </dev/null >/dev/null 2>&1 3>&- 9>&- &
    if [ -n "$flap" ]; then
        printf '%s\n' "$flap" >"$folder/$token.flap"
        started "c4bench-$token-flap" -- "$folder/$token.flap" ||
            echo "exec sh '$folder/$token.flap'" | at now >/dev/null 2>&1 9>&- || {
            finish
            refuse "nothing could be started that repeats the fault"
        }
    fi
    say applied
}

# end TOKEN: undo it for whoever asks, unless the timer or a restart has.
end() {
    token=$1
    problems=
    if lockable || [ -e "$folder/$token.undo" ]; then
        lock 60 || refuse "$folder cannot be locked; run heal again"
        touch "$folder/$token.over" 2>/dev/null
        [ ! -e "$folder/$token.undo" ] || problems=$(sh "$folder/$token.undo" held)
        disarm
    fi
    [ -z "$problems" ] || say problems "$(last_line "$problems")"
    say boot "$(cat /proc/sys/kernel/random/boot_id)"
    say over
}

attempt() {
    error=$(limited "$1" 2>&1) || problems="${problems:+$problems; }$1: $(last_line "$error")"
}

# until_ms UPTIME_MS: wait while the fault is in force.
until_ms() {
    while [ -e "$folder/$token.undo" ]; do
        left=$(($1 - $(uptime_ms)))
        [ $left -gt 0 ] || return
        [ $left -le 1000 ] || left=1000
        pause $left
    done
}

# undo HOW [UPTIME_MS]: what TOKEN.undo does: at that time (wait), at once (timer), or under the lock of a script (held).
# At that time it only goes where the switch itself has undone the change (forget).
undo() {
    token=$(basename "$0" .undo)
    if [ "$1" = wait ] || [ "$1" = forget ]; then
        [ ! -e "$folder/$token.undo" ] || touch "$folder/$token.waiting"
        until_ms "$2"
    fi
    [ "$1" = held ] || lock || exit 1
    [ -e "$folder/$token.undo" ] || exit 0
    problems=
    [ "$1" = forget ] || undo_lines
    if [ "$1" != held ] && [ -n "$problems" ]; then
        pause 300
        problems=
        undo_lines
    fi
    touch "$folder/$token.over" 2>/dev/null
    rm -f "$folder/$token.waiting" "$folder/$token.flap" "$folder/$token.undo"
    [ -z "$problems" ] || printf '%s\n' "$problems"
}

under_lock() {
    (lock && [ -e "$folder/$token.undo" ] && "$1")
}

# flap TOKEN PERIOD_MS ON_MS COUNT: undo the change and make it again while it is in force.
flap() {
    token=$1
    began=$(uptime_ms)
    number=0
    while [ $number -lt "$4" ]; do
        [ $number -eq 0 ] || under_lock on_lines || return
        until_ms $((began + number * $2 + $3))
        under_lock off_lines || return
        number=$((number + 1))
        until_ms $((began + number * $2))
    done
}

exec 3>&1

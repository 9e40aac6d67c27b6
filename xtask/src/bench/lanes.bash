# What the benches do in dom0, in lanes side by side. Each thing done is a line 'VERB GUEST SUBJECT START END CODE': two times of
# dom0's uptime, and the code it ended with. What xl says goes where it went.
# Configurations are in /run/bench, which is no disk.

now() { read -r now _ < /proc/uptime; }

# timed VERB GUEST SUBJECT COMMAND...
timed() {
  local start code
  now; start=$now
  "${@:4}"; code=$?
  now
  echo "$1 $2 $3 $start $now $code"
  return $code
}

# said GUEST TEXT SECONDS: waits until a guest's console, which is new, has TEXT.
said() {
  local left=$(($3 * 5))
  until grep -aqs "$2" "/var/log/xen/console/guest-$1.log"; do
    [ $((left -= 1)) -gt 0 ] || { echo "$1 has not said '$2' in $3 s" >&2; return 1; }
    sleep 0.2
  done
}

# begin DOMAIN NUMBER STEP: gives a watching testfront a step. end DOMAIN NUMBER: waits for its outcome, which must be good.
begin() { xenstore-write "/local/domain/$1/data/step" "$2 $3"; }
end() {
  local result
  until result=$(xenstore-read "/local/domain/$1/data/result" 2> /dev/null) && [ "${result%% *}" = "$2" ]; do sleep 0.1; done
  case $result in "$2 ok"*) ;; *) echo "domain $1: step $result" >&2; return 1 ;; esac
}
step() { begin "$@" && end "$1" "$2"; }

# born GUEST DISKS: creates a guest. cold [GUEST DISKS]...: guests that are created with their disks, connect them, and are destroyed.
born() { timed create "$1" "$2" xl create -qe "/run/bench/$1.cfg"; }
cold() {
  local -a alive
  for ((; $# > 1; )); do
    born "$1" "$2" && alive+=("$1" "$2")
    shift 2
  done
  set -- "${alive[@]}"
  for ((; $# > 1; )); do
    timed connect "$1" "$2" said "$1" "step 1 ok" 120
    timed destroy "$1" "$2" xl destroy "$1"
    shift 2
  done
}

# attach GUEST DOMAIN DEVICE DISK: also says when xl has seen the backend's 2, as soon as xl says so.
attach() {
  xl -vvv block-attach "$1" "$4" 2>&1 | while IFS= read -r line; do
    case $line in
      *"wanted state 2 ok"*) now; echo "look $2 $3 $now $now 0" ;;
      *error:*) echo "$line" >&2 ;;
    esac
  done
  return "${PIPESTATUS[0]}"
}

# hot GUEST GUEST [DEVICE DISK]...: attaches each disk to both guests, which run and go to 3 as soon as they see a directory.
hot() {
  local guests=("$1" "$2") guest number=0
  local -A domain
  shift 2
  for guest in "${guests[@]}"; do
    born "$guest" 0 || return
    domain[$guest]=$(xl domid "$guest")
  done
  for ((; $# > 1; )); do
    number=$((number + 1))
    for guest in "${guests[@]}"; do
      begin "${domain[$guest]}" "$number" "connect vbd=$1 early seconds=60"
      timed attach "${domain[$guest]}" "$1" attach "$guest" "${domain[$guest]}" "$1" "$2"
    done
    for guest in "${guests[@]}"; do timed connect "${domain[$guest]}" "$1" end "${domain[$guest]}" "$number"; done
    shift 2
  done
  for guest in "${guests[@]}"; do timed destroy "$guest" "$number" xl destroy "$guest"; done
}

# life GUEST TEXT: one life of a guest, which ends when its console has TEXT.
life() { rm -f "/var/log/xen/console/guest-$1.log"; xl create -qe "/run/bench/$1.cfg" && said "$1" "$2" 120 && xl destroy "$1"; }
# lives GUEST ROUNDS TEXT
lives() {
  local round
  for ((round = 0; round < $2; round++)); do timed create-destroy "$1" "$round" life "$1" "$3"; done
}

# swap GUEST DOMAIN NUMBER VDEV DEVICE DISK: attaches a disk to a running guest, writes, reads back, detaches. Four steps from NUMBER on.
swap() {
  begin "$2" "$3" "connect vbd=$5 early" && xl block-attach "$1" "$6" && end "$2" "$3" &&
    step "$2" $(($3 + 1)) "write vbd=$5 count=64 pattern=$3" && step "$2" $(($3 + 2)) "verify vbd=$5 count=64 pattern=$3" &&
    xl block-detach "$1" "$4"
}
# swaps GUEST ROUNDS VDEV DEVICE DISK: the guest lives as long.
swaps() {
  local domain round
  xl create -qe "/run/bench/$1.cfg" || return
  domain=$(xl domid "$1")
  for ((round = 0; round < $2; round++)); do timed attach-detach "$1" "$round" swap "$1" "$domain" $((round * 4 + 1)) "${@:3}"; done
  xl destroy "$1"
}

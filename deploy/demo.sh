#!/usr/bin/env bash
# make demo: a hub and two nodes on loopback with the built-in demo agent, one
# task to both. DEMO_EXIT=1 stops everything at the end; otherwise the hub stays
# up until Ctrl-C. DEMO_AGENT=opencode uses the real agent. Nothing outside a
# temporary directory is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/bin

# An inherited MESH… variable would point the demo at somebody's real mesh.
for v in $(compgen -e | grep '^MESH' || true); do unset "$v"; done

tmp=$(mktemp -d "${TMPDIR:-/tmp}/mesh-demo.XXXXXX")
pids=()
cleanup() {
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

agent=${DEMO_AGENT:-demo}
node_args=(--agent command -- "$bin/meshnode" demo-agent)
if [ "$agent" = opencode ]; then
  command -v opencode >/dev/null || { echo "demo: no opencode on PATH; install it (npm install -g opencode-ai) or leave DEMO_AGENT unset" >&2; exit 1; }
  if ! opencode models 2>/dev/null | grep -q /; then
    echo "demo: opencode has no model configured; run opencode auth login first, or leave DEMO_AGENT unset" >&2
    exit 1
  fi
  node_args=(--agent opencode)
elif [ "$agent" != demo ]; then
  echo "demo: DEMO_AGENT is demo or opencode, not $agent" >&2
  exit 2
fi

password=$(head -c 18 /dev/urandom | base64 | tr -d '/+=')
mkdir -p "$tmp/hub" "$tmp/alpha-work" "$tmp/beta-work"
echo "a file for alpha" >"$tmp/alpha-work/notes.txt"
echo "a file for beta" >"$tmp/beta-work/notes.txt"

# lines FILE N PID: waits until a process has written N lines to FILE.
lines() {
  for _ in $(seq 200); do
    [ "$(wc -l <"$1" 2>/dev/null || echo 0)" -ge "$2" ] && return 0
    kill -0 "$3" 2>/dev/null || break
    sleep 0.05
  done
  echo "demo: a process did not start" >&2
  cat "$1" "${1%.out}.log" >&2 2>/dev/null || true
  exit 1
}

echo "starting the hub"
MESH_PASSWORD=$password "$bin/meshhub" serve --data "$tmp/hub" --listen 127.0.0.1:0 >"$tmp/hub.out" 2>"$tmp/hub.log" &
pids+=($!)
lines "$tmp/hub.out" 2 $!
url=$(sed -n 's/^listening //p' "$tmp/hub.out")
link=$(sed -n 's/^join //p' "$tmp/hub.out")

for name in alpha beta; do
  echo "starting node $name"
  MESH_PASSWORD=$password "$bin/meshnode" run --data "$tmp/$name" --hub "$link" --name "$name" --workspace "main=$tmp/$name-work" "${node_args[@]}" >"$tmp/$name.out" 2>"$tmp/$name.log" &
  pids+=($!)
done

export MESH_DIR=$tmp/ctl
MESH_PASSWORD=$password "$bin/meshctl" login "$link" --as demo --operator >/dev/null
echo "waiting for the nodes"
for _ in $(seq 600); do
  [ "$("$bin/meshctl" nodes --json | grep -c '"state":"online"')" = 2 ] && break
  sleep 0.1
done
"$bin/meshctl" nodes
echo
echo "\$ meshctl dispatch --all -- 'Describe your workspace in one line.'"
"$bin/meshctl" dispatch --all --timeout 5m -- 'Describe your workspace in one line.'

if [ -n "${DEMO_EXIT:-}" ]; then
  exit 0
fi
cat <<TEXT

Dashboard: $url (password: $password; the browser warns of the hub's own key)
Join link: $link
Try:  MESH_DIR=$tmp/ctl $bin/meshctl nodes
Ctrl-C stops everything and removes $tmp.
TEXT
wait "${pids[0]}"

#!/usr/bin/env bash
# One SuperLink and two SuperNodes on this machine over TLS, then one run of this app. Extra arguments go to `flwr run`,
# for example: ./deploy.sh --run-config 'defence="topk:ratio=0.9" num-server-rounds=3'
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
port=${PORT:-8471}
FLWR_HOME=${FLWR_HOME:-$(mktemp -d)}
export FLWR_HOME FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1  # fedseal and torch are installed already
mkdir -p "$FLWR_HOME/log"
"$here/certificates.sh" "$FLWR_HOME/certificates" 127.0.0.1
cat > "$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "loopback"
[superlink.loopback]
address = "127.0.0.1:$port"
root-certificates = "$FLWR_HOME/certificates/ca.pem"
TOML
pids=()
stop() { kill -INT "${pids[@]}" 2>/dev/null || true; wait "${pids[@]}" 2>/dev/null || true; }
trap stop EXIT
flower-superlink --host 127.0.0.1 --port "$port" --disable-runtime-dependency-installation \
    --ssl-ca-certfile "$FLWR_HOME/certificates/ca.pem" --ssl-certfile "$FLWR_HOME/certificates/server.pem" \
    --ssl-keyfile "$FLWR_HOME/certificates/server.key" > "$FLWR_HOME/log/superlink.log" 2>&1 & pids+=($!)
for _ in $(seq 120); do
  curl -fs --cacert "$FLWR_HOME/certificates/ca.pem" "https://127.0.0.1:$port/health" > /dev/null && break; sleep 0.5
done
for i in 0 1; do
  flower-supernode --superlink "127.0.0.1:$port" --root-certificates "$FLWR_HOME/certificates/ca.pem" \
      --host 127.0.0.1 --port "$((port + 10 + i))" --node-config "partition-id=$i num-partitions=2" \
      > "$FLWR_HOME/log/supernode-$i.log" 2>&1 & pids+=($!)
done
cd "$here"
run=$(flwr run . loopback --format json "$@" | python3 -c 'import json,sys; print(json.load(sys.stdin)["run-id"])')
status=pending
until [[ $status == finished* ]]; do # `flwr run --stream` exits with 0 even if the run fails
  sleep 5
  status=$(flwr list --run-id "$run" --format json | python3 -c 'import json,sys; print(json.load(sys.stdin)["runs"][0]["status"])')
done
flwr log "$run" --show 2>/dev/null | tail -n 40 || true
echo "run $run: $status; logs in $FLWR_HOME/log"
[[ $status == finished:completed ]]

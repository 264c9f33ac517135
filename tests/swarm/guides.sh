# What stands in for machines, engines and services while the commands of a page run: read by bash before them. Each
# `modelvine up` is a node of its own on free ports of loopback; later commands go to the one that was started last.
# From outside: ROOT, PYTHON, WORKER (the URL of a worker without a key).
set -eu -o pipefail
nodes=0
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
export MODELVINE_HTTP=127.0.0.1:0 MODELVINE_LISTEN=/ip4/127.0.0.1/tcp/0 MODELVINE_MDNS=false

# Wait until the last process has written WORDS into FILE.
said() { # FILE WORDS
    until grep -q "$2" "$1"; do
        kill -0 $! 2>/dev/null || { cat "$1" "$1.log" >&2; return 1; }
        sleep 0.05
    done
}

run_node() {
    export MODELVINE_DATA_DIR=$PWD/node$nodes
    # Not what the node said before its restart.
    : > "node$nodes.out"
    command modelvine "${up[@]}" >> "node$nodes.out" 2> "node$nodes.out.log" &
    node=$!
    said "node$nodes.out" '^ready '
    MODELVINE_NODE=$(sed -n 's/^ready http=\([^ ]*\) .*/\1/p' "node$nodes.out" | tail -n 1)
    export MODELVINE_NODE
}

digest() { curl -fsS "$1/api/v1/catalog?digest=1"; }

modelvine() {
    if [ "$1" != up ]; then
        command modelvine "$@"
        return
    fi
    nodes=$((nodes + 1))
    up=("$@")
    run_node
    if [ "$nodes" = 1 ]; then
        FIRST=$(sed -n 's/.* p2p=//p' node1.out)
        first=$MODELVINE_NODE
    fi
    # People are slower than a node that hears of another.
    case "$*" in *--bootstrap*) until [ "$(digest "$MODELVINE_NODE")" = "$(digest "$first")" ]; do sleep 0.05; done ;; esac
}

vllm() {
    PYTHONPATH=$ROOT "$PYTHON" -m tests.swarm.worker_process --key "$VLLM_API_KEY" > vllm.out 2> vllm.out.log &
    said vllm.out '^ready '
    VLLM=$(sed -n 's/^ready url=//p' vllm.out)
}

llama-server() { :; }
git() { :; }
make() { :; }
sudo() { "$@"; }

systemctl() {
    case $1 in
    stop) kill "$node" && wait "$node" ;;
    start) run_node ;;
    *) return 1 ;;
    esac
}

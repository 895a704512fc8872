#!/usr/bin/env bash
# Make .cache/prefect-VERSION: another Prefect in front of everything that .venv holds, and print its interpreter.
#   usage: scripts/prefect_environment.sh 3.9.1
# That version and vLLM cannot be installed together by pip (they disagree about fastapi), and the tests that use it
# need no vLLM.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1
folder=$PWD/.cache/prefect-$version
if [ ! -e "$folder/ready" ]; then
    rm -rf "$folder"
    .venv/bin/python -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet "prefect==$version" >&2
    echo "$PWD/.venv/lib/python3.11/site-packages" >"$folder/lib/python3.11/site-packages/behind.pth"
    touch "$folder/ready"
fi
echo "$folder/bin/python"

#!/usr/bin/env bash
# Make .cache/prefect-VERSION and print its interpreter. That version and vLLM cannot be installed together by pip (they
# disagree about fastapi), and the tests that use it need no vLLM.
#   usage: scripts/prefect_environment.sh 3.9.1
exec "$(dirname "$0")/environment_with.sh" "prefect-$1" "prefect==$1"

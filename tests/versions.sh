#!/usr/bin/env bash
# The oldest and the newest torch: for each a fresh environment, the binding compiled against its headers, the tests run on the CPU. Then the
# device code, compiled by the oldest CUDA compiler that pip has, NVRTC 12.8. By hand: minutes, and gigabytes of torch's CUDA libraries.
#
#     tests/versions.sh [VERSION ...]      torch's versions as pip understands them; left out: 2.9 and the newest
#     ROOM=folder tests/versions.sh        where environments lie, and stay; left out: a new folder, removed at the end
#     PYTHON=python3.10 tests/versions.sh  left out: python3
#     TESTS="tests/test_autograd.py"       what is run; left out: all
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ -z "${ROOM:-}" ]; then
  ROOM=$(mktemp -d)
  trap 'rm -rf "$ROOM"' EXIT
fi
[ $# -gt 0 ] || set -- 2.9 newest
export CUDA_VISIBLE_DEVICES=
failed=()

for version; do
  environment="$ROOM/torch-$version"
  [ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
  wanted=torch
  [ "$version" = newest ] || wanted="torch==$version.*"
  "$environment/bin/python" -m pip install -q --disable-pip-version-check "$wanted" -r requirements-dev.txt
  "$environment/bin/python" -c 'import platform, torch; print(f"== torch {torch.__version__}, Python {platform.python_version()}", flush=True)'
  cuda=$("$environment/bin/python" -c "import torch; print(torch.version.cuda)")
  case $cuda in  # a part of the runtime's headers lies with the compiler's
    12.*) headers="nvidia-cuda-nvcc-cu12==$cuda.*" ;;
    *) headers="nvidia-cuda-crt~=$cuda.0" ;;
  esac
  "$environment/bin/python" -m pip install -q --disable-pip-version-check "$headers"
  "$environment/bin/python" tests/versions.py binding || failed+=("torch $version: the binding")
  # shellcheck disable=SC2086
  "$environment/bin/python" -m pytest ${TESTS:-tests} -k "not Compilation" || failed+=("torch $version: the tests")
done

environment="$ROOM/nvrtc"
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
"$environment/bin/python" -m pip install -q --disable-pip-version-check "nvidia-cuda-nvrtc-cu12==12.8.*" "nvidia-cuda-runtime-cu12==12.8.*" \
  "nvidia-cuda-cccl-cu12==12.8.*"
echo "== NVRTC 12.8"
"$environment/bin/python" tests/versions.py device || failed+=("NVRTC 12.8: the device code")

if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "all versions hold"

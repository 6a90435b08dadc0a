#!/usr/bin/env bash
# All that can be known of the kernels without a GPU, into benchmarks/results: what the compiler made
# of each (offline_compile, offline_compile_mosaic), the bytes they move (traffic), bugs planted and
# seen (planted), lowering by the oldest and the newest jax (lowering), all of it as one table
# (ladder); then the whole engine step (compiled_step). No driver, no device.
# Needs Python 3.11 and 3.12 and a CUDA toolkit's ptxas. 14 minutes on two cores, installing apart.
# Mosaic GPU complains that it finds no nvdisasm; it only wanted to print.
#   benchmarks/offline_compile.sh [--targets h200 h100 a100]
# CUDA_VENV, OLDEST_VENV, NEWEST_VENV: virtual environments to use or make; about 1.5 GB.
# PYTHON311, PYTHON312: to make them with.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${CUDA_VENV:-.venv-cuda}
if [ ! -x "$venv/bin/cuobjdump" ]; then
    "${PYTHON312:-python3.12}" -m venv "$venv"
    "$venv/bin/pip" install -q --no-compile "jax==0.11.2" flatbuffers
    # Without their dependencies, which are gigabytes of libraries that only running needs.
    "$venv/bin/pip" install -q --no-compile --no-deps \
        jax-cuda13-plugin==0.11.2 jax-cuda13-pjrt==0.11.2 nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
    # What the engine imports.
    "$venv/bin/pip" install -q --no-compile tokenizers llguidance jinja2 tqdm
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for tool in cuobjdump nvdisasm; do
        ln -sf "$(find "$packages/nvidia" -name "$tool" -type f | head -1)" "$venv/bin/$tool"
        chmod +x "$venv/bin/$tool"
    done
fi

# jax_only VENV PYTHON REQUIREMENT: make it unless it is there.
jax_only() {
    [ -x "$1/bin/python" ] || { "$2" -m venv "$1" && "$1/bin/pip" install -q --no-compile "$3"; }
}
oldest=${OLDEST_VENV:-.venv-oldest} newest=${NEWEST_VENV:-.venv-newest}
jax_only "$oldest" "${PYTHON311:-python3.11}" "jax==0.10.2"
jax_only "$newest" "${PYTHON312:-python3.12}" "jax"

dumps=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$dumps"' EXIT
results=benchmarks/results
mkdir -p "$results"
export JAX_PLATFORMS=cpu PYTHONPATH=$PWD PYTHONWARNINGS=ignore
# Without JAX_PLATFORMS=cpu jax looks for a device; PATH is for cuobjdump, XLA finds its own ptxas.
compile() {
    local dump
    dump=$(mktemp -d -p "$dumps")
    PATH="$venv/bin:$PATH:/usr/local/cuda/bin" \
        XLA_FLAGS="--xla_dump_to=$dump --xla_dump_emitter_re=ptx" MOSAIC_GPU_DUMP_TO="$dump" \
        "$venv/bin/python" -m "benchmarks.kernel_traffic.$1" --dump "$dump" --out "$results/$2" "${@:3}"
    rm -rf "$dump"
}
lower() {
    "$1/bin/python" -m benchmarks.kernel_traffic lower --results "$results" --backend "$2"
}
rm -f "$results"/lowering*.json

# Two at a time, for two cores.
(
    set -e
    compile offline offline_compile --targets h200 a100 "$@"
    compile planted planted
    lower "$oldest" triton
    lower "$newest" triton
) &
triton=$!
compile offline offline_compile_mosaic --backend mosaic --targets h200
compile offline_traffic traffic
compile offline_traffic traffic_mosaic --backend mosaic --targets h200
# Mosaic GPU needs jax 0.11.
lower "$venv" mosaic
lower "$newest" mosaic
wait "$triton"
"$venv/bin/python" benchmarks/compiled_step.py --json "$results/compiled_step.json" &
step=$!
"$newest/bin/python" -m benchmarks.kernel_traffic ladder --results "$results"
wait "$step"

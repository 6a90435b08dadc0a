#!/usr/bin/env bash
# Compile every kernel for GPUs that are not there (no driver, no device) and write the table
# benchmarks/results/offline_compile{,_mosaic}.{md,json}; count the bytes that they move,
# traffic.{md,json}; then
# the whole engine step, compiled_step.json.
# Needs Python 3.12 and a CUDA toolkit's ptxas.
#   benchmarks/offline_compile.sh [--targets h200 h100 a100] [--only NAME]
# CUDA_VENV: a virtual environment to use or make; about 1 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${CUDA_VENV:-.venv-cuda}
if [ ! -x "$venv/bin/cuobjdump" ]; then
    python3.12 -m venv "$venv"
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
dump=$(mktemp -d)
trap 'rm -rf "$dump"' EXIT
mkdir -p benchmarks/results
export JAX_PLATFORMS=cpu PYTHONPATH=$PWD PYTHONWARNINGS=ignore
# Without JAX_PLATFORMS=cpu jax looks for a device; PATH is for cuobjdump, XLA finds its own ptxas.
compile() {
    PATH="$venv/bin:$PATH:/usr/local/cuda/bin" \
        XLA_FLAGS="--xla_dump_to=$dump --xla_dump_emitter_re=ptx" MOSAIC_GPU_DUMP_TO="$dump" \
        "$venv/bin/python" -m "pallas_kernels.lab.$1" --dump "$dump" --out "benchmarks/results/$2" "${@:3}"
}
compile offline offline_compile "$@"
compile offline offline_compile_mosaic --backend mosaic --targets h200
compile offline_traffic traffic
"$venv/bin/python" benchmarks/compiled_step.py --json benchmarks/results/compiled_step.json

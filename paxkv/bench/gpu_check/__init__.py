"""What must be known of a GPU, measured in one go: `python -m paxkv.bench.gpu_check`."""

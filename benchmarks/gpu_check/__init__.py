"""What must be known of a GPU, measured in one go: `python -m benchmarks.gpu_check`."""

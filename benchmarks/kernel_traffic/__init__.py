"""What is known of the kernels without a GPU: bytes moved, rungs climbed, bugs planted."""

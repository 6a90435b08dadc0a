"""Which sequences advance in the next step, and who is preempted."""

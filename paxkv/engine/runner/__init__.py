"""Everything on the device: programs, their inputs, and the state between steps."""

"""Studies of the engine's parts, most of them simulated: `python -m benchmarks.studies`."""

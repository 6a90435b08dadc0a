"""Families of models: what a checkpoint of each says, and how its tensors are called."""

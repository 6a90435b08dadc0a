"""Model families: fields of their checkpoints and names of their tensors."""

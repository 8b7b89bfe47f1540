"""PyTorch's collectives over popdist: calls of the engine on torch tensors."""

"""PopTorch's interface, emulated on the CPU by PyTorch and popdist."""

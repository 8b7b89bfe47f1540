"""torch.distributed's collective calls: checked, and made as calls of the engine.

In come tensors and options as torch gives them to a process group; out go calls on the
group's ArrayTransport, and the works that torch's callers wait for.
"""

"""torch.distributed's collective calls: checked, made as calls of tensors, with works.

In come tensors and options as torch gives them to a process group; out go calls of
popdist.torch.tensors, and the works that torch's callers wait for.
"""

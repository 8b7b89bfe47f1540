"""Takes a module and inputs; gives a compiled model, from a forward pass or a file."""

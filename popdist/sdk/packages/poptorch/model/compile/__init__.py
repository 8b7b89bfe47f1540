"""Takes a module and inputs; gives what a forward pass has shown, or a file held."""

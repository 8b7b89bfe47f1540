"""Values of an inventory -> tables, JSON values and files."""

"""Texts of the commands: colours, tables, errors of click -> stdout and stderr."""

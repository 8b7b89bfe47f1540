"""Texts of the commands: tables, sentences, errors of click -> stdout and stderr."""

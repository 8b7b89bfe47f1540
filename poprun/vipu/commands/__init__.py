"""The vipu and vipu-admin commands: argv -> an inventory -> tables, JSON, sentences."""

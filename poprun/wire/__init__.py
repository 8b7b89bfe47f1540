"""The messages between poprun, its agents on other hosts, and its helpers."""

"""Hosts -> what poprun knows of them before a job starts: one object for each host."""

"""Calls to time -> seconds a call: all members in step, all candidates in turn."""

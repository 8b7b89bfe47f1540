"""Bytes of many streams -> whole lines of one console, with their tags. Pure."""

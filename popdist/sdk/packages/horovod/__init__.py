"""Horovod's interface, with popdist's collectives."""

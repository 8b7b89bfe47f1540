"""horovod.torch's interface, with popdist's collectives."""

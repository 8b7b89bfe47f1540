"""Rules of pods, partitions and devices: values in, values or refusals out. Pure."""

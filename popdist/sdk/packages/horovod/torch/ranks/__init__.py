"""The ranks: start and end of Horovod, process sets, and the timeline of calls."""

"""Plan -> Job: the facts to start one attempt with, and the IPUs reserved for it."""

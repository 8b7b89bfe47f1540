"""Events -> actions, until the job is over: the loop, and what decides for it."""

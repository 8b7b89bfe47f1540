"""Plan -> Job: what a job needs is reserved, checked and described."""

"""One machine's part of a job: in poprun's process, or in an agent's elsewhere."""

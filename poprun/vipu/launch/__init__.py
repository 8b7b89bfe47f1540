"""The partition of a job: from poprun's options to the IPUs that the job holds."""

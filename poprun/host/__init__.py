"""What runs on each other host of a job, and poprun's connection to it."""

"""The records of a job's processes -> a timeline -> tables and a page."""

"""What a job's processes record -> one timeline of it -> who waited for whom."""

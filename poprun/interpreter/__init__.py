"""What poprun adds to the Python interpreters of instances; poprun never imports it."""

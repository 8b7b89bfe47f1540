"""Code for the Python interpreters of instances; poprun never imports it."""

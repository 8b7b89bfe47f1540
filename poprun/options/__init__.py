"""Command line, variables and configuration file -> Settings."""

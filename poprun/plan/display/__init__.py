"""Plan -> the text that --print-topology and --dry-run print."""

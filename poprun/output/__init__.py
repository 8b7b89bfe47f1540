"""The instances' streams on their way between the instances, the terminal and files."""

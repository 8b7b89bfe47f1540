"""The programs beside a job, and the protocol between them and poprun."""

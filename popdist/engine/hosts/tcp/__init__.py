"""Links by TCP, among processes that have authenticated with the key of their job."""

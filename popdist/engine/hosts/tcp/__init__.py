"""Links by TCP, among processes that prove that they know the key of their job."""

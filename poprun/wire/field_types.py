"""The types of fields that a received value is checked by, beside Python's own.

An int fits in a C int and is not negative, and a str is shown to users: characters that
would control a terminal are escaped.
"""

from typing import Annotated

Long = Annotated[int, "64 bits"]
WaitStatus = Annotated[int, "as waitpid gives it"]
# -1 stands for no limit.
Limit = Annotated[int, "as getrlimit gives it"]
# It is used as it is. Shown to users it has to be escaped.
FilePath = Annotated[str, "as os.fsdecode gives it"]
# "" stands for none.
Address = Annotated[str, "of IPv4 or IPv6"]

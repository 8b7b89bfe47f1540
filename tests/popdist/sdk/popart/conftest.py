"""Makes the stand-in importable for the tests of this folder."""

import popdist.sdk

popdist.sdk.install()

"""Group and arrays -> calls to time: the engine, its peers, and a plain copy."""

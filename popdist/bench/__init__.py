"""How fast the engine is next to its peers: `python -m popdist.bench`, under poprun."""

"""The specification of reductions: dtypes, and a reference in numpy."""

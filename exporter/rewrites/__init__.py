"""Graph rewrites, one per file. Each is pure: a function of the graph alone."""

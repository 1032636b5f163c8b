"""One small process for each engine and precision, driven over standard input and output."""

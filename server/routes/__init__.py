"""Route tables, one blueprint a file."""

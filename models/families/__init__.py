"""What a trace cannot see: parser defaults and quirks, one model_type a file."""

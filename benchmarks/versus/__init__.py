"""ortloom beside other engines on the same machine, the same model and the same prompts."""

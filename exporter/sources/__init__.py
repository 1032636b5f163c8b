"""Where weights, config and tokenizer come from: a Hugging Face folder or a GGUF file."""

"""Facts about models: manifest, tokenizer, chat template, families. Knows neither torch nor ORT."""

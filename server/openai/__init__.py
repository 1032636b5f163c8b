"""OpenAI request and response types and their handlers."""

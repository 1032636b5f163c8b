"""Grammar engines, each one file behind `backend.GrammarBackend`."""

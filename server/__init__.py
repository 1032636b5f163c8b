"""The HTTP surface: supervisor, Sanic fronts, OpenAI routes. The only place that imports Sanic."""

"""The OpenAPI document of the routes that are served, and pages that show it."""

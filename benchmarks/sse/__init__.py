"""What HTTP and server-sent events cost beside a bare Sanic server: `python -m benchmarks.sse`."""

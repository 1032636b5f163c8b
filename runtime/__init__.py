"""The engine: scheduler, KV cache, model runner, sampler, and the clients that reach it."""

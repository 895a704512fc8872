"""vLLM servers: how to start one, what it can do, and the client that talks to it."""

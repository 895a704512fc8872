"""The trainer process: takes samples from the store, makes steps, publishes weights, writes checkpoints."""

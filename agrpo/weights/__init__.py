"""From the trainer's parameters to what the servers serve, and the proof that both are the same."""

"""Tools: what the model is told about them, how its calls are read, and how they are run."""

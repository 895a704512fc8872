"""What the command line prints. Nothing here imports torch, transformers or prefect: `show` answers at once."""

"""The parts of benchmarks/durability.py."""

"""Which samples share a row, and the tensors of a row."""

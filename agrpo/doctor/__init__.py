"""What a run needs of the machine: one function a question, each with what to do when the answer is bad."""

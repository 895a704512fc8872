"""Tool calls as families of models write them: one file a family."""

"""Tools that a model may call: what it is told about them, how its calls are read, and where they run."""

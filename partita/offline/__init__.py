"""Training on data that are there: supervised fine-tuning, reward models, preferences. Three commands, one loop."""

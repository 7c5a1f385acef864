"""Partita: reinforcement-learning post-training of language models, composed from small named parts."""

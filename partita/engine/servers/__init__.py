"""Engines in other processes: what they have in common (`api`), who asks which of them (`client`, `pool`), one file per kind."""

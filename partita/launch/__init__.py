"""Beyond one process: who runs where, how processes start, who watches them, and what happens when one ends."""

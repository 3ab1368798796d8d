"""From figures to a regime with its evidence."""

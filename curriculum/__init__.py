"""What to train: recipes, mixtures, token arithmetic, schedules, stages and identity. No I/O but reading a recipe."""

"""A run as it lies in storage: its record, its stop, its milestones, metrics, alerts and log, and what can be asked of them."""

"""A plan as people see it: its table, what it costs, its drawing."""

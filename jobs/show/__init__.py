"""Everything that people see: the terminal, pages, the dashboard, notifications."""

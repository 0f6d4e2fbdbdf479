"""A run as its watchers see it, read from storage alone: where it is, whether it is healthy, how it compares."""

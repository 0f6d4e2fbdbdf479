"""The Ray cluster as we find it: connecting, what it has room for, what it is given, and what would go wrong there."""

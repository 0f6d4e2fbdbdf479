"""The commands of `ncp`, one file a family: options, and what is printed. What they do is done elsewhere."""

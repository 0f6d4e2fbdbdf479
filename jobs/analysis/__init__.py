"""What runs say together: comparisons, and the scaling laws of a ladder."""

"""One attempt at a training trajectory: the loop on every worker, its milestones, and what watches over it."""

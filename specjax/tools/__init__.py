"""Tools beside generation: plans, designs, the doctor, tuning, evaluation, pruning, growing."""

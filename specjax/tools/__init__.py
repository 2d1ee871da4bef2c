"""Tools that no generation needs: plans, designs, the doctor, tuning, evaluation, pruning, growing."""

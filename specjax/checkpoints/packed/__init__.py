"""Weights that a checkpoint stores in fewer bits than they have in memory."""

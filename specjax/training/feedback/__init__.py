"""Learning from verification: a draft model is trained on a log of rounds."""

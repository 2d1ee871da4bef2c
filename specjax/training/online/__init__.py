"""Online training of a head: from the features that verification computes while the target generates."""
